#include "selector/memory/pipeline.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "regions/base/error.hpp"

namespace shardfit::memory {

namespace {

// Blocks a chunk where the number does not divide: torchtitan counts embedding and head as a block each and gives the rest to the
// first stages (distributed/pipeline).
std::vector<Chunk> even_chunks(std::int64_t blocks, std::int64_t count) {
  std::vector<Chunk> chunks(static_cast<std::size_t>(count));
  if (blocks % count == 0) {
    for (auto& c : chunks) c.blocks = blocks / count;
    return chunks;
  }
  const std::int64_t total = blocks + 2;
  std::int64_t left = blocks;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t n = total / count + (i < total % count ? 1 : 0);
    if (i == 0 || i == count - 1) --n;
    n = std::clamp<std::int64_t>(n, 0, left);
    chunks[static_cast<std::size_t>(i)].blocks = n;
    left -= n;
  }
  chunks.back().blocks += left;
  return chunks;
}

}  // namespace

InFlight interleaved_in_flight(std::int64_t ranks, std::int64_t rank, std::int64_t micro_batches, const std::vector<std::int64_t>& weights) {
  const auto chunks = static_cast<std::int64_t>(weights.size());
  // The pattern repeats after each group of as many micro batches as there are ranks: some groups show the fullest moment.
  const std::int64_t batches = std::min(micro_batches, 8 * ranks), total = batches * chunks;
  std::int64_t warmup = 2 * (ranks - rank - 1) + (chunks - 1) * ranks;
  warmup = std::min(warmup, total);
  // Chunk of the k-th forward; backward visits the chunks in the opposite order. The last group may be shorter.
  const auto chunk_of = [&](std::int64_t k, bool forward) {
    const std::int64_t a_group = ranks * chunks, group = k / a_group, begin = group * ranks;
    const std::int64_t size = std::min(ranks, batches - begin);
    const std::int64_t c = std::min(chunks - 1, (k - group * a_group) / std::max<std::int64_t>(1, size));
    return forward ? c : chunks - 1 - c;
  };
  std::vector<std::int64_t> alive(weights.size(), 0);
  InFlight fullest;
  std::int64_t most = -1, now = 0, done = 0;
  const bool last = rank == ranks - 1;
  const auto add = [&](std::int64_t k) {
    const auto c = static_cast<std::size_t>(chunk_of(k, true));
    ++alive[c];
    now += weights[c];
  };
  for (std::int64_t k = 0; k < warmup; ++k) add(k);
  for (std::int64_t k = warmup; done < total; ++k) {
    if (k < total) add(k);
    const auto b = static_cast<std::size_t>(chunk_of(done++, false));
    // on the last rank what follows the loss is the fullest: its logits are there too
    if (alive[b] > 0 && now > most && (!last || static_cast<std::int64_t>(b) == chunks - 1)) {
      most = now;
      fullest.backward = static_cast<std::int64_t>(b);
      fullest.alive = alive;
      --fullest.alive[b];
    }
    if (alive[b] > 0) {
      --alive[b];
      now -= weights[b];
    }
  }
  if (fullest.alive.empty()) fullest.alive.assign(weights.size(), 0);
  return fullest;
}

// Megatron schedules.py: under 1F1B rank i of pp holds pp - i micro batches; interleaved as above; GPipe holds all.
std::vector<StageLayout> pipeline_stages(const Setup& s, std::int64_t blocks) {
  std::vector<StageLayout> stages;
  if (s.pp <= 1) {
    StageLayout one;
    for (std::int64_t i = 0; i < blocks; ++i) one.blocks.push_back(i);
    for (std::int64_t i = 0; i < s.predictions; ++i) one.blocks.push_back(blocks);
    one.predictions = s.predictions;
    stages.push_back(one);
    return stages;
  }
  std::vector<Chunk> chunks;
  if (s.engine == Engine::kMegatron) {
    chunks = megatron_chunks(s, blocks);
  } else {
    if (s.pp * s.vp > blocks + 2)       // embedding and head may stand for a block each
      throw Error("unsupported_combination", "/plan/pipeline_parallel/degree", fmt::format("{} stages{} for {} blocks", s.pp, s.vp > 1 ? fmt::format(" x {} virtual ones", s.vp) : "", blocks),
                  "lower pipeline_parallel.degree or virtual_stages");
    chunks = even_chunks(blocks, s.pp * s.vp);
  }
  const std::int64_t vp = static_cast<std::int64_t>(chunks.size()) / s.pp;
  const bool gpipe = s.plan.pipeline.schedule == "gpipe";
  std::vector<std::int64_t> first_of(chunks.size(), 0);
  for (std::size_t i = 1; i < chunks.size(); ++i) first_of[i] = first_of[i - 1] + chunks[i - 1].blocks;
  for (std::int64_t i = 0; i < s.pp; ++i) {
    StageLayout stage;
    stage.first = i == 0;
    stage.last = i == s.pp - 1;
    std::vector<std::vector<std::int64_t>> of_chunk;
    std::vector<std::int64_t> weights;
    for (std::int64_t c = 0; c < vp; ++c) {
      const auto number = static_cast<std::size_t>(c * s.pp + i);
      const auto& chunk = chunks[number];
      std::vector<std::int64_t> mine;
      for (std::int64_t j = 0; j < chunk.blocks; ++j) mine.push_back(first_of[number] + j);
      for (std::int64_t j = 0; j < chunk.predictions; ++j) mine.push_back(blocks);
      stage.predictions += chunk.predictions;
      stage.blocks.insert(stage.blocks.end(), mine.begin(), mine.end());
      weights.push_back(static_cast<std::int64_t>(mine.size()));
      of_chunk.push_back(std::move(mine));
    }
    if (vp > 1) {
      InFlight now;
      if (gpipe) {
        now.backward = vp - 1;
        now.alive.assign(weights.size(), s.accumulation);
        --now.alive.back();
      } else {
        now = interleaved_in_flight(s.pp, i, s.accumulation, weights);
      }
      stage.chunked = true;
      stage.active = of_chunk[static_cast<std::size_t>(now.backward)];
      for (std::size_t c = 0; c < of_chunk.size(); ++c)
        if (now.alive[c] > 0 && !of_chunk[c].empty()) stage.held.push_back({of_chunk[c], now.alive[c]});
    } else {
      const std::int64_t in_flight = std::min(gpipe ? s.accumulation : s.pp - i, s.accumulation);
      if (in_flight > 1 && !stage.blocks.empty()) stage.held.push_back({stage.blocks, in_flight - 1});
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace shardfit::memory
