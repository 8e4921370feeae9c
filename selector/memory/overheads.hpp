// What fills a device besides the job's tensors: CUDA context, communicators, what the driver keeps; cuBLAS workspaces and tables.
#pragma once
#include <cstdint>
#include <vector>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {

struct Overheads {
  std::int64_t context = 0;         // CUDA context and loaded kernels
  std::int64_t communicators = 0;   // NCCL
  std::int64_t driver_reserve = 0;  // part of nvidia-smi's total that no process gets
  std::int64_t least = 0, most = 0; // range of context and communicators together
  std::int64_t total() const { return context + communicators; }
};
Overheads overheads_of(const Setup& setup);

// Blocks that torch's allocator holds from the first step to the last: cuBLAS workspaces by architecture, rotary tables, causal masks.
std::vector<std::int64_t> fixed_buffers(const Setup& setup);

}  // namespace shardfit::memory
