#include "selector/memory/pipeline.hpp"

#include <algorithm>

namespace shardfit::memory {

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
  const std::int64_t vp = interleaved ? std::max<std::int64_t>(1, s.vp) : 1;
  const std::int64_t chunk = std::max<std::int64_t>(1, blocks / (s.pp * vp));
  for (std::int64_t i = 0; i < s.pp; ++i) {
    StageLayout stage;
    stage.first = i == 0;
    stage.last = i == s.pp - 1;
    for (std::int64_t c = 0; c < vp; ++c)
      for (std::int64_t j = 0; j < chunk; ++j) {
        const std::int64_t b = c * chunk * s.pp + i * chunk + j;
        if (b < blocks) stage.blocks.push_back(b);
      }
    if (stage.last)
      for (std::int64_t b = chunk * s.pp * vp; b < blocks; ++b) stage.blocks.push_back(b);   // what does not divide evenly
    if (stage.blocks.empty()) stage.blocks.push_back(blocks - 1);
    std::int64_t in_flight = interleaved ? 2 * (s.pp - i - 1) + (vp - 1) * s.pp + 1 : s.plan.pipeline.schedule == "gpipe" ? s.accumulation : s.pp - i;
    in_flight = std::min(in_flight, s.accumulation * vp);
    stage.held = std::max<std::int64_t>(0, in_flight - 1);
    const std::size_t n = std::min<std::size_t>(static_cast<std::size_t>(chunk), stage.blocks.size());
    if (vp > 1) {
      if (stage.last) stage.active.assign(stage.blocks.end() - static_cast<std::ptrdiff_t>(n), stage.blocks.end());
      else stage.active.assign(stage.blocks.begin(), stage.blocks.begin() + static_cast<std::ptrdiff_t>(n));
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace shardfit::memory
