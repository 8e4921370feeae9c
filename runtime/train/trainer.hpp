// A training run of one rank, from the inputs to the exit status.
#pragma once
#include "runtime/train/environment.hpp"
#include "runtime/train/inputs.hpp"

namespace shardfit::train {

// Returns the process's exit status (docs/runtime.md). Errors are printed, written to metrics.jsonl and told to the
// other ranks.
int train(const Options& options, const Environment& environment);

}  // namespace shardfit::train
