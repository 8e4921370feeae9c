#include "selector/memory/bounds.hpp"

#include <algorithm>
#include <iterator>

namespace shardfit::memory {

namespace {

// What may be unknown of a job, with the widths of a peak made of activations: `above` the estimate, and `below` it for the verdict "no".
// Each is what tests/truth/bounds_calibration.py finds over the class's runs (bounds_calibration.txt), rounded up to 5 %; no less than twice
// the largest error of code that was read (10 %), 15 % where one source has all runs. No run of an unnamed loop has a published peak: it is
// taken as a trainer that was not read, and may be any better.
struct Class {
  const char* name;
  double above, below;
  const char* why;
};
// clang-format off
constexpr Class kExperts{"experts", 0.20, 0.10, "routing of tokens to experts is taken as balanced"};
constexpr Class kUnread{"unread trainer", 0.40, 0.20, "the trainer's code is not modelled"};
constexpr Class kUndated{"version not stated", 0.15, 0.05, "the trainer's version is not stated"};
constexpr Class kCollectives{"tensor-parallel collectives", 0.25, 0.10, "collectives of tensor parallelism hold buffers while the CPU runs ahead"};
constexpr Class kEngine{"engine without a profile", 0.20, 0.10, "the engine has no profile"};
constexpr Class kGraph{"graph compiler", 0.75, 0.10, "a graph compiler decides what is kept"};
constexpr Class kLoop{"unnamed loop", 0.40, 0.25, "the training loop is not named"};
// clang-format on

// Trainers whose loss, norms and kept variables are rows of profile.cpp and loss.cpp.
bool is_read(const std::string& trainer) {
  static constexpr const char* kRead[] = {"transformers", "accelerate", "torchtitan", "torchtune", "litgpt", "fsdp_qlora", "megatron", "composer", "xtuner"};
  return std::any_of(std::begin(kRead), std::end(kRead), [&](const char* name) { return trainer == name; });
}

}  // namespace

Bounds bounds_of(const Setup& s) {
  Bounds b;
  // A run whose DeepSpeed configuration is not shown may have had smaller buckets than the default.
  if (s.engine == Engine::kZero && s.stage >= 1 && s.plan.deepspeed.find("zero_optimization") == s.plan.deepspeed.end() && !s.plan.schedule.reduce_bucket_bytes)
    b.open_bytes = s.zero.reduce_bucket * s.parameter_bytes / 2;
  b.known = "read";
  const auto is = [&b](const Class& c) {
    b.below = std::max(b.below, c.below);
    if (c.above <= b.activations) return;
    b.activations = c.above;
    b.known = c.name;
    b.why = c.why;
  };
  bool experts = false;
  for (const auto& block : s.model.blocks)
    for (const auto& op : block.ops) experts = experts || op.kind == model::OpKind::kExperts;
  if (experts) is(kExperts);
  if (s.engine == Engine::kOwn) return b;
  const auto& f = s.job.framework;
  if (s.engine == Engine::kFsdp2 && s.tp > 1) is(kCollectives);
  if (f.name == "other") is(kEngine);
  if (!s.trainer.empty() && !is_read(s.trainer)) is(kUnread);
  else if (!s.trainer.empty() && f.trainer_version.empty()) is(kUndated);
  if (s.engine == Engine::kDdp && s.trainer.empty()) is(kLoop);
  if (s.job.compile == "graph") is(kGraph);
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
  return static_cast<std::int64_t>(std::min(by_rest, static_cast<double>(stage.allocated_peak) * (1 - b.below)) - b.open_bytes);
}

}  // namespace shardfit::memory
