#include "selector/memory/overheads.hpp"

#include <algorithm>

#include "selector/hardware/device.hpp"
#include "selector/memory/communicators.hpp"

namespace shardfit::memory {

Overheads overheads_of(const Setup& s) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  Overheads o;
  if (s.device.is_cpu) return o;
  // Every module loaded: 1343 MiB (transformers' performance guide: V100, CUDA 11.2). Since torch 1.13 modules load when first used
  // (pytorch PR 86509): 426 MiB for an empty context (unslothai/unsloth-zoo PR 1053: Ada, torch 2.10), at most 0.92 GiB with the kernels of
  // a training loop (least nvidia-smi minus allocated over the single-GPU runs of fms-acceleration); the estimate lies between.
  constexpr double kEmpty = 0.42, kLoop = 0.92, kEager = 1.3;
  const double cc = s.device.compute_capability_number();
  const bool old_card = cc > 0 && cc < 8 && s.torch_date == kNewest && s.job.software_cuda.empty();   // published runs on them date from before
  const bool eager = s.torch_date < 20221028 || old_card;
  o.context = static_cast<std::int64_t>((eager ? kEager : (kEmpty + kLoop) / 2) * kGiB);
  const auto nccl = communicator_bytes(s);
  o.communicators = nccl.likely;
  o.least = static_cast<std::int64_t>((eager && !old_card ? 1.0 : kEmpty) * kGiB) + nccl.least;
  o.most = static_cast<std::int64_t>((eager ? kEager : kLoop) * kGiB) + nccl.likely;
  // What torch reports as a card's memory: H100 79.1 of 79.65 GiB; A100 79.15 of 80 and 39.59 of 40 GiB.
  o.driver_reserve = static_cast<std::int64_t>(cc >= 8 && cc < 8.05 ? 0.0106 * s.device.memory_bytes() : 0.55 * kGiB);
  return o;
}

std::vector<std::int64_t> fixed_buffers(const Setup& s) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  std::vector<std::int64_t> blocks;
  if (!s.device.is_cpu) {
    // aten/src/ATen/cuda/CublasHandlePool.cpp: :4096:2:16:8 = 8.125 MiB, on sm_90 :4096:8 = 32 MiB, for each handle and stream. Handles
    // belong to threads: the loop's forward has one, autograd's backward another (checked on torch 2.4, 2.6 and 2.11).
    const double cc = s.device.compute_capability_number();
    const std::int64_t workspace = cc >= 9 && cc < 10 ? 32 * kMiB : 8 * kMiB + kMiB / 8;
    if (s.engine == Engine::kMegatron) {
      // CUBLAS_WORKSPACE_CONFIG=:4096:8 of its launch scripts for both, and Transformer Engine's own by architecture (its goldens: +24 MiB on Hopper)
      blocks = {64 * kMiB + (cc >= 9 ? 32 * kMiB : 8 * kMiB + kMiB / 8)};
    } else {
      blocks = {workspace, workspace};
    }
  }
  std::int64_t table = 0;
  if (s.model.rope_theta > 0) {
    table = s.model.max_positions * s.model.attention.head_dim * 4 * 2;
    // transformers keeps no tables any more (models/*/modeling_*.py: Llama since 4.41, Mistral 4.42, the others 4.45, Mixtral 4.48): cosine and
    // sine of the batch's positions, made once a forward
    const auto& family = s.model.family;
    const int since = family == "llama" ? 441 : family == "mistral" ? 442 : family == "mixtral" ? 448 : 445;
    if ((s.trainer == "transformers" || s.trainer == "accelerate" || s.trainer == "trl") && s.age >= since)
      table = s.sequence * s.model.attention.head_dim * s.compute_bytes * 2;
  }
  if (s.model.family == "gpt_bigcode") table = s.model.max_positions * s.model.max_positions;   // its causal mask
  blocks.push_back(std::min<std::int64_t>(table, 64 * kMiB));
  return blocks;
}

}  // namespace shardfit::memory
