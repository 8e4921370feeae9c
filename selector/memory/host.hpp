// Host memory and NVMe of a job, per node.
#pragma once
#include <cstdint>

#include "selector/memory/overheads.hpp"
#include "selector/memory/rank_replay.hpp"

namespace shardfit::memory {

struct HostBytes {
  std::int64_t total = 0, pinned = 0, nvme = 0;    // pinned is a part of total
  std::int64_t base = 0;                           // libraries; not part of total
  std::int64_t rounding = 0;                       // what the pinned allocator may add
};
HostBytes host_bytes(const Setup& setup, const ModelSizes& sizes);

// Fills Result::fits and Result::why from device_peak_high and host bytes.
// `below`: how far, relative, the allocated peak may lie under the estimate (Bounds::below); "no" needs more than that.
void judge(const Request& request, const Setup& setup, const Overheads& over, const HostBytes& host, double below, Result& result);

}  // namespace shardfit::memory
