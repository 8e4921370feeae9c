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

// Fills Result::fits and Result::why from Result::needed_low and needed_high against the capacity, and from what the host must give.
void judge(const Request& request, const Setup& setup, const HostBytes& host, Result& result);

}  // namespace shardfit::memory
