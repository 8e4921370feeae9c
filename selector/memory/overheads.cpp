#include "selector/memory/overheads.hpp"

#include "selector/hardware/device.hpp"

namespace shardfit::memory {

Overheads overheads_of(const Setup& s) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  Overheads o;
  if (s.device.is_cpu) return o;
  // 1343 MiB with every module loaded (transformers' performance guide: V100, CUDA 11.2); 0.4-0.6 GiB with lazy loading (CUDA 11.7
  // and later). Cards before Ampere in published runs date from the time before it.
  const double cc = s.device.compute_capability_number();
  o.context = static_cast<std::int64_t>((cc > 0 && cc < 8 ? 1.3 : 0.5) * kGiB);
  // Calibrated over the fms-acceleration runs: smallest nvidia-smi minus allocated of FSDP runs less that of single-GPU runs.
  if (s.gpus > 1) o.communicators = static_cast<std::int64_t>(0.8 * kGiB);
  // What torch reports as a card's memory: H100 79.1 of 79.65 GiB; A100 79.15 of 80 and 39.59 of 40 GiB.
  o.driver_reserve = static_cast<std::int64_t>(cc >= 8 && cc < 8.05 ? 0.0106 * s.device.memory_bytes() : 0.55 * kGiB);
  return o;
}

}  // namespace shardfit::memory
