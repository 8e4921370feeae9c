// The canonical form of a plan and its hash: every key, in the order of the format page; null = not stated.
#include "regions/base/files.hpp"
#include "selector/job/plan.hpp"

namespace shardfit::job {

namespace {

using Ordered = nlohmann::ordered_json;

template <class T>
Ordered or_null(const std::optional<T>& value) {
  return value ? Ordered(*value) : Ordered(nullptr);
}

const char* word(Place place) { return place == Place::kCpu ? "cpu" : place == Place::kNvme ? "nvme" : "none"; }

Ordered reshard_json(const Sharding& s) {
  if (!s.reshard_stated) return nullptr;
  switch (s.reshard_after_forward) {
    case Sharding::Reshard::kTrue: return true;
    case Sharding::Reshard::kFalse: return false;
    case Sharding::Reshard::kAlways: return "always";
    case Sharding::Reshard::kOver: return s.reshard_over;
  }
  return nullptr;
}

Ordered checkpointing_json(const Checkpointing& c) {
  if (!c.stated) return nullptr;
  if (c.every == 1 && !c.reentrant && c.modules.empty() && !c.save) return c.kind;
  Ordered o = {{"kind", c.kind}, {"every", c.every}, {"reentrant", or_null(c.reentrant)}};
  o["modules"] = c.modules;
  o["save"] = or_null(c.save);
  return o;
}

Ordered unit_json(const GatherSchedule& g) {
  if (!g.unit_classes.empty()) return g.unit_classes;
  if (!g.unit_blocks) return nullptr;
  return *g.unit_blocks == 1 ? Ordered("block") : Ordered(*g.unit_blocks);
}

}  // namespace

nlohmann::ordered_json to_json(const Plan& p) {
  Ordered o = Ordered::object();
  o["gpu"] = p.gpu;
  o["gpus_per_node"] = p.gpus_per_node;
  o["nodes"] = p.nodes;
  o["cpus_per_gpu"] = or_null(p.cpus_per_gpu);
  o["device_memory_gib"] = or_null(p.device_memory_gib);
  o["sharding"] = Ordered{{"stage", p.sharding.stage},
                          {"shard_degree", p.sharding.shard_degree},
                          {"replicate_degree", p.sharding.replicate_degree},
                          {"reshard_after_forward", reshard_json(p.sharding)},
                          {"over_context_parallel", p.sharding.over_context_parallel}};
  o["tensor_parallel"] = p.tensor_parallel;
  o["sequence_parallel"] = p.sequence_parallel;
  o["context_parallel"] = p.context_parallel;
  o["expert_parallel"] = p.expert_parallel;
  o["pipeline_parallel"] = Ordered{{"degree", p.pipeline.degree},
                                   {"schedule", p.pipeline.schedule},
                                   {"virtual_stages", or_null(p.pipeline.virtual_stages)}};
  o["micro_batch"] = p.micro_batch;
  o["gradient_accumulation"] = p.gradient_accumulation;
  o["accumulate_without_sync"] = p.accumulate_without_sync;
  o["activation_checkpointing"] = checkpointing_json(p.checkpointing);
  o["offload"] = Ordered{{"parameters", word(p.offload.parameters)},
                         {"gradients", word(p.offload.gradients)},
                         {"optimizer", word(p.offload.optimizer)},
                         {"optimizer_fraction", p.offload.optimizer_fraction},
                         {"activations", word(p.offload.activations)},
                         {"schedule", p.offload.schedule},
                         {"nvme_path", p.offload.nvme_path.empty() ? Ordered(nullptr) : Ordered(p.offload.nvme_path)},
                         {"pin", or_null(p.offload.pin)},
                         {"buffers", or_null(p.offload.buffers)},
                         {"buffer_bytes", or_null(p.offload.buffer_bytes)},
                         {"tile_elements", or_null(p.offload.tile_elements)}};
  o["schedule"] = Ordered{{"unit", unit_json(p.schedule)},
                          {"prefetch_blocks", or_null(p.schedule.prefetch_blocks)},
                          {"prefetch_bytes", or_null(p.schedule.prefetch_bytes)},
                          {"gather_bucket_bytes", or_null(p.schedule.gather_bucket_bytes)},
                          {"reduce_bucket_bytes", or_null(p.schedule.reduce_bucket_bytes)},
                          {"keep_resident_below", or_null(p.schedule.keep_resident_below)},
                          {"limit_gathers", or_null(p.schedule.limit_gathers)}};
  o["allocator"] = Ordered{{"expandable_segments", p.expandable_segments}};
  o["checkpoint_load"] = p.checkpoint_load;
  o["deepspeed"] = Ordered::parse(p.deepspeed.dump());
  o["fsdp"] = Ordered::parse(p.fsdp.dump());
  o["megatron"] = Ordered::parse(p.megatron.dump());
  return o;
}

std::string plan_sha256(const Plan& plan) { return sha256_hex(to_json(plan).dump()); }

}  // namespace shardfit::job
