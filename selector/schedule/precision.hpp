// The number formats of a run of shardfit-train.
#pragma once
#include <cstdint>

#include "selector/job/dtype.hpp"

namespace shardfit::job {
struct Job;
}

namespace shardfit::schedule {

struct RunPrecision {
  job::DType parameters = job::DType::kFp32;  // as held, sharded: what the optimizer updates
  job::DType compute = job::DType::kFp32;     // gathered weights, activations, a unit's fresh gradients
  job::DType gradients = job::DType::kFp32;   // accumulated over micro steps, sharded; what reductions sum in
  job::DType states = job::DType::kFp32;      // exp_avg, exp_avg_sq
};

std::int64_t width_of(job::DType type);  // bytes: fp32 4, bf16 2

// "fp32", "bf16-mixed" (fp32 held and accumulated, bf16 computed) and "bf16"; the object form where it means one of
// them. Throws Error{not_supported}.
RunPrecision precision_of(const job::Job& job);

}  // namespace shardfit::schedule
