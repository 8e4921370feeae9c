#include "selector/memory/own_runtime.hpp"

#include <algorithm>

#include "selector/schedule/step.hpp"

namespace shardfit::memory {

MemoryEstimate own_runtime_memory(const schedule::Step& step) {
  MemoryEstimate estimate;
  for (const auto& buffer : step.buffers) {
    const auto same = std::find_if(estimate.terms.begin(), estimate.terms.end(), [&](const MemoryTerm& term) { return term.name == buffer.what; });
    if (same == estimate.terms.end()) estimate.terms.push_back({buffer.what, buffer.bytes});
    else same->bytes += buffer.bytes;
  }
  std::stable_sort(estimate.terms.begin(), estimate.terms.end(), [](const MemoryTerm& a, const MemoryTerm& b) { return a.bytes > b.bytes; });
  estimate.allocated_peak = estimate.reserved_peak = estimate.device_peak = step.buffer_bytes();
  estimate.allocated_peak_high = estimate.device_peak_high = estimate.allocated_peak + estimate.allocated_peak / 100;
  estimate.phase = "backward";  // all buffers are alive in every phase; this is the one that uses the most of them
  return estimate;
}

MemoryEstimate own_runtime_memory(const model::Model& model, const job::Job& job, const job::Plan& plan) {
  const auto step = schedule::build_step(model, job, plan);
  return own_runtime_memory(step);
}

}  // namespace shardfit::memory
