// Which attention kernel a job runs, and what share of the device's peak it reaches. The kernel's era is the largest
// single term of step time at long sequences: "flash" means 151 TFLOPS on an H100 with the Triton port of 2023 and 554
// with FlashAttention-3.
#pragma once
#include <string_view>

#include "selector/time/device_rates.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

struct AttentionKernel {
  double flops_per_second = 0;  // of long sequences; causal FLOPs counted only, forward and backward together
  std::string_view name;        // "flash2"
  bool stated = false;          // by the job; else inferred from engine and generation
};

AttentionKernel attention_kernel(const Work& work, const DeviceRates& rates);

// Short sequences: rate x s / (s + kHalfRateSequence).
inline constexpr double kHalfRateSequence = 328;

}  // namespace shardfit::timing
