#include "selector/memory/bounds.hpp"

#include <algorithm>

namespace shardfit::memory {

// A peak made of states is arithmetic (0.5 %); one made of activations rests on how a trainer's code is written (5 %).
std::int64_t high_bound(const Setup&, const StageResult& stage) {
  double high = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const auto phase = static_cast<Phase>(p);
    const bool states = phase == Phase::kLoad || phase == Phase::kOptimizerStep;
    high = std::max(high, static_cast<double>(stage.phase_peaks[p]) * (states ? 1.005 : 1.05));
  }
  return static_cast<std::int64_t>(high);
}

}  // namespace shardfit::memory
