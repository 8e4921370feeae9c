#include "selector/memory/bounds.hpp"

#include <algorithm>

namespace shardfit::memory {

Bounds bounds_of(const Setup& s) {
  Bounds b;
  auto widen = [&b](double width, const char* why) {
    if (width <= b.activations) return;
    b.activations = width;
    b.below = width - 0.05;
    b.why = why;
  };
  bool experts = false;
  for (const auto& block : s.model.blocks)
    for (const auto& op : block.ops) experts = experts || op.kind == model::OpKind::kExperts;
  if (experts) widen(0.10, "routing of tokens to experts is taken as balanced");
  if (s.engine == Engine::kFsdp2 && s.tp > 1) widen(0.20, "collectives of tensor parallelism hold buffers while the CPU runs ahead");
  if (s.engine != Engine::kOwn && s.job.framework.name == "other") widen(0.20, "the engine has no profile");
  if (s.engine == Engine::kDdp && s.trainer.empty()) widen(0.30, "the training loop is not named");
  if (s.job.compile == "graph") widen(0.30, "a graph compiler decides what is kept");
  // Fused kernels and in-place losses that a job does not tell of need less than the framework's own example, which is taken.
  const bool loop_unknown = s.trainer.empty() && !s.job.fused_kernels && (s.engine == Engine::kZero || s.engine == Engine::kFsdp1 || s.engine == Engine::kFsdp2);
  if (loop_unknown) b.rest_below = 0.25;
  if (s.low_bit_step) b.states = 0.03;
  return b;
}

std::int64_t high_bound(const Bounds& b, const StageResult& stage, bool with_waiting) {
  double high = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const auto phase = static_cast<Phase>(p);
    const bool states = phase == Phase::kLoad || phase == Phase::kOptimizerStep;
    high = std::max(high, static_cast<double>(stage.phase_peaks[p]) * (1 + (states ? b.states : b.activations)));
  }
  return static_cast<std::int64_t>(high) + (with_waiting ? stage.waiting_peak : 0);
}

std::int64_t low_bound(const Bounds& b, const StageResult& stage) {
  std::int64_t certain = 0;
  for (const Term t : {Term::kParameters, Term::kMaster, Term::kOptimizerStates}) certain += stage.terms[static_cast<std::size_t>(t)];
  certain = std::min(certain, stage.allocated_peak);
  const double by_rest = static_cast<double>(certain) + static_cast<double>(stage.allocated_peak - certain) * (1 - b.rest_below);
  return static_cast<std::int64_t>(std::min(by_rest, static_cast<double>(stage.allocated_peak) * (1 - b.below)));
}

}  // namespace shardfit::memory
