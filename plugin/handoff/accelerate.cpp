// Keys: accelerate's FullyShardedDataParallelPlugin and ParallelismConfig as its configuration files spell them.
#include <fmt/format.h>

#include <map>

#include "plugin/handoff/exports.hpp"
#include "plugin/handoff/precision.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"

namespace shardfit::handoff {
namespace {

const char* yes(bool b) { return b ? "true" : "false"; }

// The plan's own "fsdp" section: plain values under accelerate's names, with or without the prefix fsdp_.
void own_knobs(const Json& section, std::map<std::string, std::string>& into) {
  if (!section.is_object()) return;
  for (const auto& [key, value] : section.items()) {
    if (value.is_object() || value.is_null()) continue;
    std::string text;
    if (value.is_string()) {
      text = value.get<std::string>();
    } else if (value.is_array()) {
      std::vector<std::string> words;
      for (const auto& v : value) words.push_back(v.is_string() ? v.get<std::string>() : v.dump());
      text = join(words, ",");
    } else {
      text = value.dump();
    }
    into[key.rfind("fsdp_", 0) == 0 ? key : "fsdp_" + key] = text;
  }
}

std::map<std::string, std::string> fsdp_keys(const job::Job& job, const job::Plan& plan) {
  using Reshard = job::Sharding::Reshard;
  const bool version1 = job.framework.name == "fsdp1", hybrid = plan.sharding.replicate_degree > 1;
  const bool reshard = plan.sharding.stage == 3 && plan.sharding.reshard_after_forward != Reshard::kFalse;
  std::map<std::string, std::string> k;
  k["fsdp_version"] = version1 ? "1" : "2";
  k["fsdp_auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP";
  if (!plan.schedule.unit_classes.empty())
    k["fsdp_transformer_layer_cls_to_wrap"] = join(plan.schedule.unit_classes, ",");
  k["fsdp_offload_params"] = yes(plan.offload.parameters != job::Place::kNone);
  k["fsdp_state_dict_type"] = "SHARDED_STATE_DICT";
  k["fsdp_cpu_ram_efficient_loading"] = yes(plan.checkpoint_load == "sharded");
  k["fsdp_activation_checkpointing"] = yes(plan.checkpointing.kind != "none");
  if (version1) {
    k["fsdp_reshard_after_forward"] = hybrid    ? (reshard ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2")
                                      : reshard ? "FULL_SHARD"
                                                : "SHARD_GRAD_OP";
    k["fsdp_sharding_strategy"] = k["fsdp_reshard_after_forward"];
    k["fsdp_backward_prefetch"] = plan.schedule.prefetch_blocks.value_or(1) > 0 ? "BACKWARD_PRE" : "NO_PREFETCH";
    k["fsdp_forward_prefetch"] = "false";
    k["fsdp_use_orig_params"] = "true";
    k["fsdp_sync_module_states"] = "true";
  } else {
    k["fsdp_reshard_after_forward"] = yes(reshard);
  }
  own_knobs(plan.fsdp, k);
  return k;
}

}  // namespace

std::string accelerate_yaml(const job::Job& job, const job::Plan& plan) {
  const auto formats = formats_of(job.precision);
  const bool sharded = plan.sharding.stage > 0, alone = plan.gpus() == 1;
  std::string out = fmt::format("# Batch per process {}, gradient accumulation {}: arguments of the training script.\n",
                                plan.micro_batch, plan.gradient_accumulation);
  if (plan.sharding.stage == 1) out += "# FSDP has no stage 1; this shards gradients as well.\n";
  out += "compute_environment: LOCAL_MACHINE\n";
  out += fmt::format("distributed_type: {}\n", sharded             ? "FSDP"
                                               : alone             ? "'NO'"
                                               : plan.gpu == "cpu" ? "MULTI_CPU"
                                                                   : "MULTI_GPU");
  out += "downcast_bf16: 'no'\nmachine_rank: 0\nmain_training_function: main\n";
  out += fmt::format("mixed_precision: {}\n", formats.without_master || formats.compute == job::DType::kFp32 ? "'no'"
                                              : formats.compute == job::DType::kFp16                         ? "fp16"
                                                                                                             : "bf16");
  out += fmt::format("num_machines: {}\nnum_processes: {}\nrdzv_backend: {}\nsame_network: true\nuse_cpu: {}\n",
                     plan.nodes, plan.gpus(), plan.nodes > 1 ? "c10d" : "static", yes(plan.gpu == "cpu"));
  if (sharded) {
    out += "fsdp_config:\n";
    for (const auto& [key, value] : fsdp_keys(job, plan)) out += fmt::format("  {}: {}\n", key, value);
  }
  if (job.framework.name != "fsdp1" && sharded &&
      (plan.sharding.replicate_degree > 1 || plan.tensor_parallel > 1 || plan.context_parallel > 1)) {
    out += fmt::format(
        "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n  parallelism_config_dp_shard_size: {}\n  parallelism_config_tp_size: {}\n  parallelism_config_cp_size: {}\n",
        plan.sharding.replicate_degree, plan.sharding.shard_degree, plan.tensor_parallel, plan.context_parallel);
  }
  return out;
}

}  // namespace shardfit::handoff
