#include "selector/memory/own_runtime.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "selector/schedule/step.hpp"

namespace shardfit::memory {
namespace {

// oneDNN packs pieces of bf16 operands into memory of LibTorch's allocator while a product runs: 0.1 to 0.3 MB, measured over products of
// 200 x 192 x 576 to 200 x 192 x 3001. fp32 products (MKL) take none of it.
constexpr std::int64_t kBf16PackingBytes = 192 << 10;

// The memory room's word for a group of buffers.
Term term_of(const std::string& what) {
  if (what == "parameters") return Term::kParameters;
  if (what == "optimizer states") return Term::kOptimizerStates;
  if (what == "gradients") return Term::kGradients;
  if (what == "gathered parameters") return Term::kGathered;
  if (what == "parameters in the compute format") return Term::kCasts;
  if (what == "gradients of units in work") return Term::kReduceBuffers;
  if (what == "activations") return Term::kActivations;
  if (what == "scratch") return Term::kTemporaries;
  if (what == "batch") return Term::kBatch;
  return Term::kBuffers;
}

Phase phase_of(schedule::EventKind kind, Phase before) {
  switch (kind) {
    case schedule::EventKind::kEmbed:
    case schedule::EventKind::kForward: return Phase::kForward;
    case schedule::EventKind::kLoss: return Phase::kLoss;
    case schedule::EventKind::kRecompute:
    case schedule::EventKind::kBackward:
    case schedule::EventKind::kEmbedBackward: return Phase::kBackward;
    case schedule::EventKind::kClip: return Phase::kClip;
    case schedule::EventKind::kOptimizer: return Phase::kOptimizerStep;
    case schedule::EventKind::kGather:
    case schedule::EventKind::kRelease:
    case schedule::EventKind::kReduce: break;
  }
  return before;
}

}  // namespace

std::vector<TracePoint> own_runtime_trace(const schedule::Step& step) {
  TracePoint point;
  point.label = "buffers allocated";
  for (const auto& buffer : step.buffers) point.terms[static_cast<std::size_t>(term_of(buffer.what))] += buffer.bytes;
  point.allocated = point.reserved = step.buffer_bytes();
  std::vector<TracePoint> points = {point};
  point.step = 2;
  point.phase = Phase::kForward;
  for (const auto* events : {&step.micro, &step.update})
    for (const auto& event : *events) {
      point.phase = phase_of(event.kind, point.phase);
      point.label = event.unit == 0 ? fmt::format("{}", schedule::name_of(event.kind)) : fmt::format("block {} {}", event.unit - 1, schedule::name_of(event.kind));
      points.push_back(point);
    }
  return points;
}

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
