// What a job keeps in host memory and on NVMe, term by term: what each framework allocates when parameters, gradients, optimizer
// states or activations are offloaded. Libraries and interpreters are not counted here (host_base_bytes).
//
// Sources, read: deepspeed/runtime/zero/stage3.py, stage_1_and_2.py, offload_config.py and runtime/swap_tensor/ of DeepSpeed 0.19.8
// (the sums for stages 2 and 3 with the optimizer, and with parameters, in host memory agree with runs of it to 0.2 %);
// torch/distributed/fsdp (FSDP1 _flat_param.py pins the local shard and its gradient, FSDP2 fully_shard pins shards under
// CPUOffloadPolicy(pin_memory=True) and copies gradients into pinned memory).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "selector/memory/rank_replay.hpp"

namespace shardfit::memory {

struct HostTerm {
  enum class Where { kPageable, kPinned, kNvme };
  std::string name;             // "fp32 master weights", "optimizer states", ...
  std::int64_t bytes = 0;       // of all ranks of a node
  std::int64_t allocation = 0;  // bytes of one allocation of it (pinned memory is handed out in powers of two)
  Where where = Where::kPageable;
};

// Empty when nothing is offloaded. Throws Error{unsupported_combination} where the framework has no such offload.
std::vector<HostTerm> host_terms(const Setup& setup, const ModelSizes& sizes);

// Part of a rank's `trained` elements whose optimizer state lies off the device: offload.optimizer_fraction, which DeepSpeed rounds to
// whole sub-groups (the last ones, stage3.py subgroup_to_device). 0 without optimizer offload.
double optimizer_share_off_device(const Setup& setup, double trained);

// Interpreter, framework and CUDA libraries of a node's ranks, resident beside the job's own bytes.
std::int64_t host_base_bytes(const Setup& setup);

// What torch's caching host allocator adds to pinned terms: it rounds each allocation up to a power of two
// (aten/src/ATen/core/CachingHostAllocator.h). 0 for our runtime, which locks pages itself.
std::int64_t pinned_rounding_bytes(const Setup& setup, const std::vector<HostTerm>& terms);

}  // namespace shardfit::memory
