// Which blocks a pipeline rank holds and how many micro batches are in flight there.
#pragma once
#include <vector>

#include "selector/memory/rank_replay.hpp"

namespace shardfit::memory {

// One layout a stage, first to last; a single one without pipeline parallelism.
std::vector<StageLayout> pipeline_stages(const Setup& setup, std::int64_t blocks);

}  // namespace shardfit::memory
