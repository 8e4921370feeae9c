// The 95 % bounds of the peak, by what is known of the code that a job runs.
#pragma once
#include <cstdint>
#include <string>

#include "selector/memory/overheads.hpp"
#include "selector/memory/rank_replay.hpp"

namespace shardfit::memory {

struct Bounds {
  double states = 0.005;       // relative width of a peak made of states: arithmetic
  double activations = 0.10;   // of one made of activations: rests on how a trainer's code is written
  double below = 0;            // how far a peak may lie below the estimate where the code is known least
  double rest_below = 0;       // the same of its part that is no state
  double open_bytes = 0;       // what settings that are not stated could save
  std::string known;           // the widest of the classes that the job is in: "read" where all of its code is modelled from source
  std::string why;             // what widens them beyond the usual; "" otherwise
};
// Widths from the spread of errors over the published runs of each class (tests/truth/bounds_calibration.py; docs/memory.md).
Bounds bounds_of(const Setup& setup);

// Highest plausible allocated peak of a stage. `with_waiting`: what record_stream holds back counts too (it does for `active`
// statistics; under pressure the allocator waits for it and takes it back, so it does not decide whether a job fits).
std::int64_t high_bound(const Bounds& bounds, const StageResult& stage, bool with_waiting);
// Lowest plausible allocated peak. Weights at rest, master copy and optimizer states are arithmetic where the framework is known.
std::int64_t low_bound(const Bounds& bounds, const StageResult& stage);

}  // namespace shardfit::memory
