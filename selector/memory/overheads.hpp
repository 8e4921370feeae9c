// What fills a device beside torch's allocator: CUDA context, communicators, what the driver keeps.
#pragma once
#include <cstdint>

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

}  // namespace shardfit::memory
