// The 95 % bounds of the peak, and the verdict that follows from them.
#pragma once
#include <cstdint>
#include <string>

#include "selector/memory/overheads.hpp"
#include "selector/memory/rank_replay.hpp"

namespace shardfit::memory {

// Highest plausible allocated peak of a stage: each phase has a width of its own.
std::int64_t high_bound(const Setup& setup, const StageResult& stage);

}  // namespace shardfit::memory
