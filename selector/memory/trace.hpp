// The curve of memory over one optimizer step, for people: `shardfit explain` draws it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "selector/memory/memory.hpp"
#include "selector/memory/terms.hpp"
#include "selector/memory/timeline.hpp"

namespace shardfit::memory {

struct Trace {
  // In program order: load, then two optimizer steps (step 1 creates the optimizer states; step 2 is the steady state). Each point
  // is the highest moment since the point before: its label ("block 31 backward"), phase, step, allocated bytes and what is alive
  // by term (TermBytes, index = Term; name_of(Term) names it). Bytes of the fullest pipeline stage.
  std::vector<TracePoint> points;
  std::int64_t context_bytes = 0;     // CUDA context and communicators, outside of the allocator
  double capacity_bytes = 0;          // what nvidia-smi shows as the device's total, less the driver's share; 0 = unknown
  Result result;                      // the estimate itself
};

// The same replay as estimate_memory, recorded; every block is replayed in full.
Trace trace_memory(const Request& request);

}  // namespace shardfit::memory
