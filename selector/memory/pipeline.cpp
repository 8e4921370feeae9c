#include "selector/memory/pipeline.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"

namespace shardfit::memory {

namespace {

// Megatron's --pipeline-model-parallel-layout: stages divided by '|', E embedding, t block, m block of multi-token prediction, L loss;
// "*n" repeats the letter or the bracketed group before it.
struct Chunk {
  std::int64_t blocks = 0, predictions = 0;
};
std::string expand(const std::string& text, std::size_t& at) {
  std::string out;
  while (at < text.size() && text[at] != ')') {
    std::string unit;
    if (text[at] == '(') {
      unit = expand(text, ++at);
      if (at < text.size()) ++at;
    } else {
      unit = text[at++];
    }
    std::int64_t times = 1;
    if (at < text.size() && text[at] == '*') {
      times = 0;
      for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9' && times < 10000; ++at) times = times * 10 + (text[at] - '0');
    }
    for (std::int64_t i = 0; i < times && out.size() < 100000; ++i) out += unit;
  }
  return out;
}
std::vector<Chunk> parse_layout(const std::string& text) {
  std::size_t at = 0;
  std::vector<Chunk> chunks(1);
  for (char c : expand(text, at)) {
    if (c == '|') chunks.emplace_back();
    else if (c == 't') ++chunks.back().blocks;
    else if (c == 'm') ++chunks.back().predictions;
  }
  return chunks;
}

// Blocks a chunk where the number does not divide: Megatron demands that it does; torchtitan counts embedding and head as a block
// each and gives the rest to the first stages (distributed/pipeline).
std::vector<Chunk> even_chunks(const Setup& s, std::int64_t blocks, std::int64_t count) {
  std::vector<Chunk> chunks(static_cast<std::size_t>(count));
  if (blocks % count == 0) {
    for (auto& c : chunks) c.blocks = blocks / count;
    return chunks;
  }
  const std::int64_t ends = s.engine == Engine::kMegatron ? 0 : 2;
  const std::int64_t total = blocks + ends;
  std::int64_t left = blocks;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t n = total / count + (i < total % count ? 1 : 0);
    if (ends > 0 && (i == 0 || i == count - 1)) --n;
    n = std::clamp<std::int64_t>(n, 0, left);
    chunks[static_cast<std::size_t>(i)].blocks = n;
    left -= n;
  }
  chunks.back().blocks += left;
  return chunks;
}

}  // namespace

// Megatron schedules.py: under 1F1B rank i of pp holds pp - i micro batches; interleaved over vp chunks 2 (pp - i - 1) + (vp - 1) pp + 1
// chunks, never more than micro batches x vp; GPipe holds all.
std::vector<StageLayout> pipeline_stages(const Setup& s, std::int64_t blocks) {
  std::vector<StageLayout> stages;
  if (s.pp <= 1) {
    StageLayout one;
    for (std::int64_t i = 0; i < blocks; ++i) one.blocks.push_back(i);
    stages.push_back(one);
    return stages;
  }
  const bool interleaved = s.plan.pipeline.schedule == "interleaved_1f1b";
  std::int64_t vp = interleaved ? std::max<std::int64_t>(1, s.vp) : 1;
  std::vector<Chunk> chunks;
  const auto layout = s.plan.megatron.find("pipeline-model-parallel-layout");
  if (layout != s.plan.megatron.end() && layout->is_string()) {
    chunks = parse_layout(layout->get<std::string>());
    std::int64_t named = 0;
    for (const auto& c : chunks) named += c.blocks;
    if (named != blocks || static_cast<std::int64_t>(chunks.size()) % s.pp != 0)
      throw Error("layout_mismatch", "/plan/megatron/pipeline-model-parallel-layout",
                  fmt::format("the layout has {} stages with {} blocks, the model {} blocks and the pipeline {} ranks", chunks.size(), named, blocks, s.pp),
                  "make its letters t add up to the model's blocks and its stages a multiple of pipeline_parallel.degree");
    vp = static_cast<std::int64_t>(chunks.size()) / s.pp;
  } else {
    if (s.pp * vp > blocks + 2)  // embedding and head may stand for a block each
      throw Error("unsupported_combination", "/plan/pipeline_parallel/degree", fmt::format("{} stages{} for {} blocks", s.pp, vp > 1 ? fmt::format(" x {} virtual ones", vp) : "", blocks),
                  "lower pipeline_parallel.degree or virtual_stages");
    chunks = even_chunks(s, blocks, s.pp * vp);
  }
  std::vector<std::int64_t> first_of(chunks.size(), 0);
  for (std::size_t i = 1; i < chunks.size(); ++i) first_of[i] = first_of[i - 1] + chunks[i - 1].blocks;
  for (std::int64_t i = 0; i < s.pp; ++i) {
    StageLayout stage;
    stage.first = i == 0;
    stage.last = i == s.pp - 1;
    std::size_t begin = 0, end = 0;     // of the chunk that is replayed: the last one where the loss is, else the first
    for (std::int64_t c = 0; c < vp; ++c) {
      const auto& chunk = chunks[static_cast<std::size_t>(c * s.pp + i)];
      const std::size_t before = stage.blocks.size();
      for (std::int64_t j = 0; j < chunk.blocks; ++j) stage.blocks.push_back(first_of[static_cast<std::size_t>(c * s.pp + i)] + j);
      for (std::int64_t j = 0; j < chunk.predictions; ++j) stage.blocks.push_back(blocks - 1);
      stage.predictions += chunk.predictions;
      if (c == 0 || stage.last) {
        begin = before;
        end = stage.blocks.size();
      }
    }
    if (stage.blocks.empty()) {
      stage.blocks.push_back(std::min(i, blocks - 1));
      begin = 0;
      end = 1;
    }
    std::int64_t in_flight = interleaved ? 2 * (s.pp - i - 1) + (vp - 1) * s.pp + 1 : s.plan.pipeline.schedule == "gpipe" ? s.accumulation : s.pp - i;
    in_flight = std::min(in_flight, s.accumulation * vp);
    stage.held = std::max<std::int64_t>(0, in_flight - 1);
    if (vp > 1 && end > begin)
      stage.active.assign(stage.blocks.begin() + static_cast<std::ptrdiff_t>(begin), stage.blocks.begin() + static_cast<std::ptrdiff_t>(end));
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace shardfit::memory
