// Device memory of NCCL, outside of torch's allocator: buffers of each communicator by topology and version.
#pragma once
#include <cstdint>
#include <vector>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {

// One process group that a rank takes part in.
struct Communicator {
  std::int64_t ranks = 1;
  std::int64_t local_ranks = 1;    // of them on this node
  bool reduces_all = false;        // large all-reduces: on NVLink switches NCCL does them in the switch (NVLS)
  std::int64_t peers = 0;          // ranks of this node that it exchanges tensors with one by one (pipeline, all-to-all)
};

// The groups of a plan that have more than one rank, as the engine makes them.
std::vector<Communicator> communicators_of(const Setup& setup);

struct CommunicatorBytes {
  std::int64_t least = 0;          // rings only, as with NCCL_NVLS_ENABLE=0 or without a fabric manager
  std::int64_t likely = 0;
};
CommunicatorBytes communicator_bytes(const Setup& setup);

}  // namespace shardfit::memory
