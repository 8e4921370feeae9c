#include "selector/search/candidates.hpp"

#include <algorithm>
#include <cmath>

#include "selector/model/model.hpp"
#include "selector/schedule/supported.hpp"

namespace shardfit::search {

using job::Place;
using job::Plan;

Capabilities capabilities_of(const std::string& framework) {
  using Style = Capabilities::OffloadStyle;
  if (framework == "shardfit")
    return {.stages = {0, 1, 2, 3},
            .keep_gathered = true,
            .hybrid = true,
            .offload = Style::kDeepSpeed,
            .checkpointing = {"none", "full"}};
  if (framework == "fsdp1")
    return {.stages = {3},
            .keep_gathered = true,
            .hybrid = true,
            .offload = Style::kFsdp,
            .checkpointing = {"none", "full"}};
  if (framework == "fsdp2")
    return {.stages = {3},
            .keep_gathered = true,
            .hybrid = true,
            .offload = Style::kFsdp,
            .checkpointing = {"none", "selective_op", "full"}};
  if (framework == "deepspeed")
    return {.stages = {0, 1, 2, 3}, .offload = Style::kDeepSpeed, .checkpointing = {"none", "full"}};
  if (framework == "megatron")
    return {.stages = {1},
            .tensor_parallel = true,
            .pipeline_parallel = true,
            .expert_parallel = true,
            .checkpointing = {"none", "selective_op", "full"}};
  if (framework == "ddp") return {.stages = {0}, .checkpointing = {"none", "full"}};
  return {.stages = {0, 1, 2, 3}, .offload = Style::kDeepSpeed, .checkpointing = {"none", "full"}};
}

std::optional<std::string> runtime_refuses(const job::Job& job, const Plan& plan, const model::Model* model) {
  return job.framework.name == "shardfit" ? schedule::why_unsupported(job, plan, model) : std::nullopt;
}

std::vector<std::pair<std::int64_t, std::int64_t>> sizes_of(const pricing::Offer& offer,
                                                            std::optional<std::int64_t> max_nodes) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  const std::int64_t full = std::max<std::int64_t>(offer.gpus_per_node, 1),
                     unit = std::max<std::int64_t>(offer.min_gpus, 1);
  const std::int64_t most = std::min(std::max<std::int64_t>(offer.max_nodes, 1), max_nodes.value_or(offer.max_nodes));
  for (std::int64_t g = 1; g < full; g *= 2)
    if (g >= unit && g % unit == 0) out.emplace_back(1, g);
  std::vector<std::int64_t> nodes;
  for (std::int64_t base = 1; base <= most; base *= 2) {
    nodes.push_back(base);
    if (base >= 2 && base + base / 2 <= most) nodes.push_back(base + base / 2);
  }
  nodes.push_back(most);
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  for (const auto n : nodes)
    if (n >= 1 && n * full >= unit && (n * full % unit == 0 || n == most)) out.emplace_back(n, full);
  return out;
}

namespace {

std::int64_t experts_of(const model::Model& model) {
  std::int64_t experts = 0;
  for (const auto& block : model.blocks)
    for (const auto& op : block.ops) experts = std::max(experts, op.moe.experts);
  return experts;
}

std::vector<std::int64_t> powers_dividing(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t p = 1; p <= most && n % p == 0; p *= 2) out.push_back(p);
  return out;
}

// Tensor, pipeline and expert degrees; {1,1,1} alone for frameworks that have none.
struct Split {
  std::int64_t tensor = 1, pipeline = 1, expert = 1;
};
std::vector<Split> splits_of(const Capabilities& can, const model::Model& model, const Shape& shape) {
  if (!can.tensor_parallel) return {{}};
  std::vector<Split> out;
  const std::int64_t gpus = shape.nodes * shape.gpus_per_node, experts = experts_of(model);
  const std::int64_t heads = std::max<std::int64_t>(model.attention.heads, 1),
                     kv = std::max<std::int64_t>(model.attention.kv_heads, 1);
  for (const auto t : powers_dividing(shape.gpus_per_node, 8)) {
    if (heads % t != 0 || (kv % t != 0 && t % kv != 0)) continue;
    for (const auto p : powers_dividing(gpus / t, 16)) {
      if (model.block_count() % p != 0) continue;
      for (const auto e : powers_dividing(gpus / t / p, experts ? 64 : 1))
        if (e == 1 || experts % e == 0) out.push_back({t, p, e});
    }
  }
  return out;
}

// How parameters, gradients and states are laid out over `ranks` data-parallel ranks.
std::vector<Plan> layouts_of(const Capabilities& can, const Shape& shape, std::int64_t ranks, bool frozen_base) {
  std::vector<Plan> out;
  const auto add = [&](int stage, std::int64_t shard, bool reshard, Place parameters, Place gradients,
                       Place optimizer) {
    Plan p;
    p.gpu = shape.gpu;
    p.nodes = shape.nodes;
    p.gpus_per_node = shape.gpus_per_node;
    p.device_memory_gib = shape.device_memory_gib;
    p.sharding.stage = stage;
    p.sharding.shard_degree = stage == 0 ? 1 : shard;
    p.sharding.replicate_degree = stage == 0 ? ranks : ranks / shard;
    if (stage == 3) {
      p.sharding.reshard_stated = true;
      p.sharding.reshard_after_forward = reshard ? job::Sharding::Reshard::kTrue : job::Sharding::Reshard::kFalse;
    }
    p.offload.parameters = parameters;
    p.offload.gradients = gradients;
    p.offload.optimizer = optimizer;
    out.push_back(std::move(p));
  };
  constexpr Place none = Place::kNone, cpu = Place::kCpu, nvme = Place::kNvme;
  for (const int stage : can.stages) {
    if (ranks == 1 && stage > 0 && can.stages.size() > 1 && can.stages.front() == 0) {
      // One rank shards nothing: only offload makes a stage differ from stage 0.
    } else {
      add(stage, ranks, true, none, none, none);
      if (stage == 3 && can.keep_gathered && ranks > 1) add(stage, ranks, false, none, none, none);
      if (stage == 3 && can.hybrid && shape.nodes > 1 && ranks == shape.nodes * shape.gpus_per_node &&
          shape.gpus_per_node > 1)
        add(stage, shape.gpus_per_node, true, none, none, none);
    }
    if (can.offload == Capabilities::OffloadStyle::kFsdp) add(stage, ranks, true, cpu, cpu, cpu);
    if (can.offload == Capabilities::OffloadStyle::kDeepSpeed) {
      if (stage == 2 || stage == 3) {
        if (!frozen_base) add(stage, ranks, true, none, none, cpu);
        if (stage == 3) add(stage, ranks, true, cpu, none, frozen_base ? none : cpu);
        if (stage == 3 && shape.nvme && !frozen_base) add(stage, ranks, true, nvme, none, nvme);
      }
    }
  }
  return out;
}

std::vector<std::int64_t> micro_batches(std::int64_t sequences_a_rank) {
  std::vector<std::int64_t> out = powers_dividing(sequences_a_rank, 256);
  if (sequences_a_rank <= 96 && std::find(out.begin(), out.end(), sequences_a_rank) == out.end())
    out.push_back(sequences_a_rank);
  for (const std::int64_t odd : {3, 6, 12, 24})
    if (sequences_a_rank % odd == 0 && std::find(out.begin(), out.end(), odd) == out.end()) out.push_back(odd);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::vector<Plan> plans_for(const job::Job& job, const model::Model& model, const Shape& shape) {
  std::vector<Plan> out;
  const Capabilities can = capabilities_of(job.framework.name);
  const bool frozen = job.method.kind != job::MethodKind::kFull;
  const std::int64_t gpus = shape.nodes * shape.gpus_per_node;
  std::int64_t batch = job.global_batch_sequences;
  const bool by_tokens = batch == 0 && job.global_batch_tokens && job.sequence_length > 0;
  for (const auto& split : splits_of(can, model, shape)) {
    const std::int64_t ranks = gpus / split.tensor / split.pipeline;
    std::int64_t sequences_a_rank = 0;
    if (by_tokens) {  // rounded to whole micro batches of one sequence a rank
      const double wanted = static_cast<double>(*job.global_batch_tokens) /
                            (static_cast<double>(job.sequence_length) * static_cast<double>(ranks));
      sequences_a_rank = std::max<std::int64_t>(1, std::llround(wanted));
      batch = sequences_a_rank * ranks;
    } else {
      if (batch < ranks || batch % ranks != 0) continue;
      sequences_a_rank = batch / ranks;
    }
    const auto micros = micro_batches(sequences_a_rank);
    for (auto& layout : layouts_of(can, shape, ranks, frozen)) {
      layout.tensor_parallel = split.tensor;
      layout.sequence_parallel = split.tensor > 1;
      layout.pipeline.degree = split.pipeline;
      layout.expert_parallel = split.expert;
      layout.checkpointing.stated = true;
      for (const auto& kind : can.checkpointing) {
        layout.checkpointing.kind = kind;
        if (runtime_refuses(job, layout, &model)) continue;  // no answer depends on the micro batch
        if (out.capacity() < out.size() + micros.size())
          out.reserve(std::max<std::size_t>(64, 4 * out.size() + micros.size()));
        for (const auto micro : micros) {
          const std::int64_t accumulation = sequences_a_rank / micro;
          if (split.pipeline > 1 && accumulation < split.pipeline)
            continue;  // fewer micro batches than stages leave the pipeline empty
          Plan& p = out.emplace_back(layout);
          p.micro_batch = micro;
          p.gradient_accumulation = accumulation;
        }
      }
    }
  }
  return out;
}

}  // namespace shardfit::search
