#include "selector/search/plan_sets.hpp"

#include <algorithm>

#include "selector/memory/terms.hpp"

namespace shardfit::search {
namespace {

// A single micro step needs no buffer to accumulate in: with it a larger micro batch may need less.
bool accumulates(const job::Plan& p) { return p.gradient_accumulation > 1; }

bool same_layout(const job::Plan& a, const job::Plan& b) {
  return a.sharding.stage == b.sharding.stage && a.sharding.shard_degree == b.sharding.shard_degree &&
         a.sharding.replicate_degree == b.sharding.replicate_degree &&
         a.sharding.reshard_after_forward == b.sharding.reshard_after_forward &&
         a.tensor_parallel == b.tensor_parallel && a.pipeline.degree == b.pipeline.degree &&
         a.expert_parallel == b.expert_parallel && a.offload.parameters == b.offload.parameters &&
         a.offload.gradients == b.offload.gradients && a.offload.optimizer == b.offload.optimizer;
}

}  // namespace

void link_families(PlanSet& set) {
  for (int i = 0; i < static_cast<int>(set.entries.size()); ++i) {
    auto& entry = set.entries[static_cast<size_t>(i)];
    const bool continues = !set.families.empty() && [&] {
      const auto& last = set.entries[static_cast<size_t>(set.families.back().entries.back())];
      return last.plan->checkpointing.kind == entry.plan->checkpointing.kind && same_layout(*last.plan, *entry.plan) &&
             accumulates(*last.plan) == accumulates(*entry.plan) && last.plan->micro_batch < entry.plan->micro_batch;
    }();
    if (!continues) set.families.emplace_back();
    entry.family = static_cast<int>(set.families.size()) - 1;
    set.families.back().entries.push_back(i);
  }
}

// Layouts that differ in size and micro batch alone share a key; so do GPUs whose kernels keep the same tensors (one
// generation).
LayoutKey layout_key(const job::Plan& p, const hardware::Device& device) {
  return {p.sharding.stage,
          static_cast<int>(p.sharding.reshard_after_forward),
          p.sharding.stage > 0 && p.sharding.replicate_degree > 1,
          accumulates(p),
          p.tensor_parallel,
          p.pipeline.degree,
          p.expert_parallel,
          static_cast<int>(p.offload.parameters),
          static_cast<int>(p.offload.gradients),
          static_cast<int>(p.offload.optimizer),
          static_cast<int>(p.offload.activations),
          p.checkpointing.kind,
          device.is_cpu ? -1 : static_cast<int>(device.compute_capability_number())};
}

double shards_of(const job::Plan& p) { return static_cast<double>(p.sharding.shard_degree); }

Lesson lesson_of(const PlanSet& set, const job::Job& job, const job::Plan& plan, const memory::Result& r) {
  using memory::Term;
  Lesson l{.from = &set, .shards = shards_of(plan), .micro_batch = static_cast<double>(plan.micro_batch)};
  const int stage = plan.sharding.stage;
  for (const auto& term : r.memory.terms) {
    const double bytes = static_cast<double>(term.bytes);
    const auto is = [&](Term t) { return term.name == memory::name_of(t); };
    const auto by_stage = [&](int from) {
      (stage >= from ? l.sharded : l.fixed) += stage >= from ? bytes * l.shards : bytes;
    };
    if (is(Term::kOptimizerStates) || is(Term::kMaster)) by_stage(1);
    else if (is(Term::kGradients)) by_stage(2);
    else if (is(Term::kParameters)) by_stage(3);
    else if (is(Term::kActivations) || is(Term::kActivationGradients) || is(Term::kRecomputed) ||
             (is(Term::kLogits) && job.loss.kind == "plain"))
      l.scaling += bytes / l.micro_batch;
    else if (is(Term::kGathered)) l.gathered += bytes;
    else if (term.name != "cached by the allocator") l.unclear += bytes;
  }
  return l;
}

}  // namespace shardfit::search
