// How Megatron splits a model over pipeline ranks and their virtual stages (core/transformer/transformer_block.py
// get_num_layers_to_build, core/transformer/pipeline_parallel_layer_layout.py; the checks are transformer_config.py's).
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/memory/pipeline.hpp"
#include "selector/memory/setup_parts.hpp"

namespace shardfit::memory {
namespace {

// --pipeline-model-parallel-layout: stages divided by '|', E embedding, t block, m block of multi-token prediction, L loss; "*n"
// repeats the letter or the bracketed group before it.
std::string expand(const std::string& text, std::size_t& at, int depth) {
  std::string out;
  while (at < text.size() && text[at] != ')') {
    std::string unit;
    if (text[at] == '(' && depth < 64) {
      unit = expand(text, ++at, depth + 1);
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

std::vector<Chunk> of_layout(const Setup& s, const std::string& text, std::int64_t blocks) {
  std::size_t at = 0;
  std::vector<Chunk> chunks(1);
  std::int64_t named = 0;
  for (char c : expand(text, at, 0)) {
    if (c == '|') chunks.emplace_back();
    else if (c == 't') ++chunks.back().blocks, ++named;
    else if (c == 'm') ++chunks.back().predictions;
  }
  if (named != blocks || static_cast<std::int64_t>(chunks.size()) % s.pp != 0)
    throw Error("layout_mismatch", "/plan/megatron/pipeline-model-parallel-layout",
                fmt::format("the layout has {} stages with {} blocks, the model {} blocks and the pipeline {} ranks", chunks.size(), named, blocks, s.pp),
                "make its letters t add up to the model's blocks and its stages a multiple of pipeline_parallel.degree");
  return chunks;
}

[[noreturn]] void refuse(const std::string& message, const std::string& remedy) { throw Error("unsupported_combination", "/plan/pipeline_parallel/degree", message, remedy); }

}  // namespace

std::vector<Chunk> megatron_chunks(const Setup& s, std::int64_t blocks) {
  if (const auto* layout = megatron_value(s.plan, "pipeline-model-parallel-layout"); layout && layout->is_string() && s.pp > 1)
    return of_layout(s, layout->get<std::string>(), blocks);
  const auto first = megatron_number(s.plan, "decoder-first-pipeline-num-layers"), last = megatron_number(s.plan, "decoder-last-pipeline-num-layers");
  const bool embedding = s.embedding_as_block, loss = s.loss_as_block;
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(s.pp), 0);
  if (first > 0 || last > 0) {
    const std::int64_t middle_ranks = s.pp - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0), middle = blocks - first - last;
    if (middle_ranks < 0 || middle < 0 || (middle_ranks == 0) != (middle == 0) || (middle_ranks > 0 && middle % middle_ranks != 0))
      refuse(fmt::format("{} blocks on {} pipeline ranks, {} on the first and {} on the last: {} blocks are left for {} ranks", blocks, s.pp, first, last, middle, std::max<std::int64_t>(0, middle_ranks)),
             "choose decoder-first-pipeline-num-layers and decoder-last-pipeline-num-layers so that the rest divides by the ranks between");
    for (auto& n : of_rank) n = middle_ranks > 0 ? middle / middle_ranks : 0;
    if (first > 0) of_rank.front() = first;
    if (last > 0) of_rank.back() = last;
  } else {
    const std::int64_t all = blocks + (embedding ? 1 : 0) + (loss ? 1 : 0);
    if (all % s.pp != 0)
      refuse(fmt::format("{} blocks{} do not divide by {} pipeline ranks", blocks, all > blocks ? " with embedding or loss counted as one" : "", s.pp),
             "choose a pipeline_parallel.degree that divides them, or state the split: megatron.decoder-first-pipeline-num-layers, decoder-last-pipeline-num-layers, "
             "account-for-embedding-in-pipeline-split or pipeline-model-parallel-layout");
    for (auto& n : of_rank) n = all / s.pp;
  }
  for (std::size_t r = 0; r < of_rank.size(); ++r)
    if (of_rank[r] % s.vp != 0)
      refuse(fmt::format("{} blocks of pipeline rank {} do not divide by {} virtual stages", of_rank[r], r, s.vp), "choose pipeline_parallel.virtual_stages that divide the blocks of every rank");
  std::vector<Chunk> chunks(static_cast<std::size_t>(s.pp * s.vp));
  for (std::size_t r = 0; r < of_rank.size(); ++r)
    for (std::int64_t c = 0; c < s.vp; ++c) chunks[static_cast<std::size_t>(c * s.pp) + r].blocks = of_rank[r] / s.vp;
  if (embedding) --chunks.front().blocks;
  if (loss) --chunks.back().blocks;
  if (chunks.front().blocks < 0 || chunks.back().blocks < 0)
    refuse(fmt::format("{} blocks are too few for {} stages of which embedding or loss take one", blocks, s.pp * s.vp), "lower pipeline_parallel.degree or virtual_stages");
  chunks.back().predictions = s.predictions;
  return chunks;
}

}  // namespace shardfit::memory
