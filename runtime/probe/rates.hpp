// Measures this machine: matrix products, attention, element-wise kernels, AdamW and collectives, with every rank busy
// at once.
//
// shardfit calibrate runs `shardfit-train --probe rates --ranks N --threads T [--type fp32|bf16] [--quick]` and stores
// the record that this prints; selector/time predicts the device "cpu" from it. The record's form:
// selector/calibrate/rates_json.cpp.
#pragma once
#include <string>

#include "runtime/comm/collective.hpp"
#include "runtime/kernels/kernels.hpp"

namespace shardfit::probe {

struct RatesOptions {
  int threads = 1;                            // of each rank, as set by the caller
  kernels::Type type = kernels::Type::kFp32;  // of weights and activations
  bool quick = true;                          // about 10 s instead of a minute
};

// All ranks call it together. Rank 0 gets the record as one line of JSON, the others "".
std::string measure_rates(comm::Collective& collective, const RatesOptions& options);

}  // namespace shardfit::probe
