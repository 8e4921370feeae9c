// Memory of shardfit-train: the buffers of its schedule, to the byte. It allocates them once, before step 1, and nothing afterwards.
#pragma once
#include <cstdint>

#include <vector>

#include "selector/estimate.hpp"
#include "selector/memory/timeline.hpp"

namespace shardfit::job {
struct Job;
struct Plan;
}
namespace shardfit::model {
struct Model;
}
namespace shardfit::schedule {
struct Step;
}

namespace shardfit::memory {

// Of one rank; `terms` sum to allocated_peak = reserved_peak = device_peak (what a driver, libraries and a CUDA context take comes on top
// on a GPU: overheads.hpp). Host memory apart, pinned memory and drives: none. The bounds of 95 % add
// what LibTorch may allocate in passing: 1 %.
// Throws Error{not_supported} for what shardfit-train does not run (selector/schedule/supported.hpp).
MemoryEstimate own_runtime_memory(const model::Model& model, const job::Job& job, const job::Plan& plan);
MemoryEstimate own_runtime_memory(const schedule::Step& step);

// One point an event of the steady step. The curve is flat: every buffer is there before step 1 and stays.
std::vector<TracePoint> own_runtime_trace(const schedule::Step& step);

}  // namespace shardfit::memory
