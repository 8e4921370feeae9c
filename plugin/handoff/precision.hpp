// The number formats of a job as other engines want to know them.
#pragma once
#include "selector/job/job.hpp"

namespace shardfit::handoff {

struct Formats {
  job::DType compute = job::DType::kFp32;  // fp8 recipes count as bf16: the engines keep them apart
  bool without_master = false;             // parameters, gradients and states in the compute format, no fp32 copy
  double compute_bytes = 4, gradient_bytes = 4;
};

inline Formats formats_of(const job::Precision& p) {
  Formats f;
  using job::DType;
  const DType parameters = p.parameters.value_or(p.name == "bf16" ? DType::kBf16 : DType::kFp32);
  f.compute = p.compute.value_or(p.name == "fp16-mixed" ? DType::kFp16
                                 : p.name == "fp32"     ? DType::kFp32
                                 : p.name.empty()       ? parameters
                                                        : DType::kBf16);
  if (f.compute == DType::kFp8) f.compute = DType::kBf16;
  f.without_master =
      f.compute != DType::kFp32 && parameters == f.compute && p.master.value_or(DType::kNone) == DType::kNone;
  f.compute_bytes = job::bytes_of(f.compute);
  f.gradient_bytes = job::bytes_of(p.gradients.value_or(f.compute));
  return f;
}

}  // namespace shardfit::handoff
