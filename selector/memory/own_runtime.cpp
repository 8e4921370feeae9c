#include "selector/memory/own_runtime.hpp"

#include <algorithm>

#include "selector/schedule/step.hpp"

namespace shardfit::memory {
namespace {

// oneDNN packs pieces of bf16 operands into memory of LibTorch's allocator while a product runs: 0.1 to 0.3 MB, measured over products of
// 200 x 192 x 576 to 200 x 192 x 3001. fp32 products (MKL) take none of it.
constexpr std::int64_t kBf16PackingBytes = 192 << 10;

}  // namespace

MemoryEstimate own_runtime_memory(const schedule::Step& step) {
  MemoryEstimate estimate;
  for (const auto& buffer : step.buffers) {
    const auto same = std::find_if(estimate.terms.begin(), estimate.terms.end(), [&](const MemoryTerm& term) { return term.name == buffer.what; });
    if (same == estimate.terms.end()) estimate.terms.push_back({buffer.what, buffer.bytes});
    else same->bytes += buffer.bytes;
  }
  std::int64_t packing = 0;
  if (step.sizes.precision.compute == job::DType::kBf16) {
    packing = kBf16PackingBytes;
    estimate.terms.push_back({"bf16 matrix products", packing});
  }
  std::stable_sort(estimate.terms.begin(), estimate.terms.end(), [](const MemoryTerm& a, const MemoryTerm& b) { return a.bytes > b.bytes; });
  estimate.allocated_peak = estimate.reserved_peak = estimate.device_peak = step.buffer_bytes() + packing;
  estimate.allocated_peak_high = estimate.device_peak_high = estimate.allocated_peak + estimate.allocated_peak / 100;
  estimate.phase = "backward";  // all buffers are alive in every phase; this is the one that uses the most of them
  return estimate;
}

MemoryEstimate own_runtime_memory(const model::Model& model, const job::Job& job, const job::Plan& plan) {
  const auto step = schedule::build_step(model, job, plan);
  return own_runtime_memory(step);
}

}  // namespace shardfit::memory
