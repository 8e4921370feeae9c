#include "selector/search/bounds.hpp"

#include <algorithm>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"

namespace shardfit::search {

using job::DType;
using job::Place;

Sizes sizes_of(const job::Job& job, const model::Model& model) {
  Sizes s;
  s.parameters = static_cast<double>(model.parameters());
  for (const auto& block : model.blocks)
    s.block_parameters = std::max(s.block_parameters, static_cast<double>(block.elements()));
  s.hidden = static_cast<double>(model.hidden);
  s.blocks = static_cast<double>(model.block_count());
  s.sequence = static_cast<double>(job.sequence_length);
  s.all_trainable = job.method.kind == job::MethodKind::kFull;
  const auto& p = job.precision;
  const DType held = p.parameters.value_or(DType::kBf16);
  s.weight_bytes = job.method.kind == job::MethodKind::kQlora ? 0.5 : job::bytes_of(held);
  if (s.all_trainable && (job.optimizer.name == "adamw" || job.optimizer.name == "adam"))
    s.state_bytes =
        job.optimizer.paged ? 0 : 2 * std::min(job::bytes_of(job.optimizer.states.value_or(DType::kBf16)), 2.0);
  // DeepSpeed and Megatron keep the master with the optimizer's states; where it is offloaded, both are.
  if (s.all_trainable && !job.optimizer.paged && p.master && *p.master != DType::kNone)
    s.state_bytes += std::max(0.0, job::bytes_of(*p.master) - job::bytes_of(held));
  const DType compute = p.compute.value_or(DType::kBf16);
  s.activation_bytes = compute == DType::kFp32 ? 4 : 2;
  if (model.encoder_decoder) s.blocks = s.sequence = 0;  // two lengths: the floor leaves activations out
  return s;
}

double memory_floor(const Sizes& s, const job::Plan& plan) {
  const double model_parallel = static_cast<double>(plan.tensor_parallel * plan.pipeline.degree * plan.expert_parallel);
  double shard = static_cast<double>(plan.sharding.shard_degree);
  if (plan.sharding.over_context_parallel) shard *= static_cast<double>(plan.context_parallel);
  const double mine = s.parameters / model_parallel;
  double bytes = 0;
  if (plan.offload.parameters == Place::kNone) bytes += mine * s.weight_bytes / (plan.sharding.stage == 3 ? shard : 1);
  if (s.all_trainable && plan.offload.optimizer == Place::kNone)
    bytes += mine * s.state_bytes / (plan.sharding.stage >= 1 ? shard : 1);
  if (plan.offload.activations == Place::kNone) {
    const double tokens = static_cast<double>(plan.micro_batch) * s.sequence /
                          static_cast<double>(plan.context_parallel * plan.tensor_parallel);
    const double saved = plan.checkpointing.kind == "none"
                             ? 4.0
                             : 1.0 / static_cast<double>(std::max<std::int64_t>(plan.checkpointing.every, 1));
    bytes += tokens * s.hidden * s.activation_bytes * s.blocks / static_cast<double>(plan.pipeline.degree) * saved;
  }
  return bytes;
}

}  // namespace shardfit::search
