#include "selector/job/framework_sections.hpp"

#include <algorithm>
#include <cctype>
#include <map>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"

namespace shardfit::job {

namespace {

using Words = std::vector<std::string>;

// DeepSpeed 0.19's configuration, and older names that its users still carry (docs of DeepSpeed,
// deepspeed/runtime/zero/config.py).
const std::map<std::string, Words>& deepspeed_keys() {
  // clang-format off
  static const std::map<std::string, Words> keys = {
      {"",
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op",
        "communication_data_type", "seq_parallel_communication_data_type", "data_types", "sparse_gradients", "dataloader_drop_last", "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer", "wall_clock_breakdown", "memory_breakdown", "dump_state", "steps_per_print", "bf16", "bfloat16", "fp16", "amp", "torch_autocast", "zero_optimization",
        "activation_checkpointing", "checkpoint", "aio", "optimizer", "scheduler", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comet", "monitor_config", "autotuning",
        "comms_logger", "elasticity", "compile", "compression_training", "data_efficiency", "curriculum_learning", "progressive_layer_drop", "eigenvalue", "quantize_training", "nebula",
        "hybrid_engine", "pipeline", "tensor_parallel", "sequence_parallel_size", "sparse_attention", "timers", "graph_harvesting", "use_data_before_expert_parallel_parallelism",
        "disable_allgather", "fp32_allreduce", "bind_cores_to_rank", "numa", "zenflow"}},
      {"zero_optimization",
       {"stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce", "allgather_partitions", "allgather_bucket_size", "overlap_comm",
        "load_from_fp32_weights", "elastic_checkpoint", "offload_param", "offload_optimizer", "zenflow", "sub_group_size", "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold", "stage3_model_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save", "stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params",
        "stage3_allgather_sequential", "ignore_unused_parameters", "round_robin_gradients", "legacy_stage1", "zero_hpz_partition_size", "zero_quantized_weights",
        "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "zeropp_loco_param", "mics_shard_size", "mics_hierarchical_params_gather", "memory_efficient_linear",
        "pipeline_loading_checkpoint", "override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks", "leaf_module", "save_muon_momentum_buffer_in_memory", "cpu_offload",
        "cpu_offload_params", "cpu_offload_use_pin_memory", "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters",
        "max_reuse_distance", "gather_16bit_weights_on_model_save"}},
      {"zero_optimization/offload_param", {"device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"}},
      {"zero_optimization/offload_optimizer",
       {"device", "nvme_path", "buffer_count", "buffer_size", "pin_memory", "pipeline", "pipeline_read", "pipeline_write", "fast_init", "ratio", "super_offload", "cpuadam_cores_perc"}},
      {"zero_optimization/zenflow",
       {"topk_ratio", "select_strategy", "select_interval", "update_interval", "overlap_step", "offload", "auto_ratio", "full_warm_up_rounds", "pt_reserved_cores_perc"}},
      {"aio", {"block_size", "queue_depth", "intra_op_parallelism", "thread_count", "single_submit", "overlap_events", "use_gds"}},
      {"bf16", {"enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads", "bf16_optimizer_states"}},
      {"fp16",
       {"enabled", "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads"}},
      {"activation_checkpointing",
       {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization", "synchronize_checkpoint_boundary", "profile", "number_checkpoints"}},
  };
  // clang-format on
  return keys;
}

// torch.distributed.fsdp (1 and 2), accelerate's and torchtitan's spelling of the same.
const Words& fsdp_keys() {
  // clang-format off
  static const Words keys = {"sharding_strategy", "reshard_after_forward", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "backward_prefetch", "forward_prefetch",
                             "limit_all_gathers", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading", "offload_params", "cpu_offload", "mixed_precision", "mixed_precision_policy",
                             "state_dict_type", "activation_checkpointing", "custom_sharded_layers", "enable_async_tensor_parallel", "enable_fsdp_float8_all_gather", "ignored_modules",
                             "ignored_params", "version", "fsdp_version", "param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype", "cast_forward_inputs", "cast_root_forward_inputs",
                             "keep_low_precision_grads", "data_parallel_shard_degree", "data_parallel_replicate_degree", "flatten_parameters", "bucket_cap_mb", "load_monolith_rank0_only",
                             "activation_checkpointing_reentrant", "activation_cpu_offload", "verbose", "gradient_as_bucket_view", "find_unused_parameters", "static_graph", "broadcast_buffers",
                             "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "unshard_in_backward", "share_comm_ctx", "te_checkpoint_wrapper", "te_shard_fp8_weight"};
  // clang-format on
  return keys;
}

const Words& megatron_keys() {
  // clang-format off
  static const Words keys = {
      "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "expert-model-parallel-size", "expert-tensor-parallel-size", "sequence-parallel",
      "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size", "pipeline-model-parallel-layout",
      "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split", "use-distributed-optimizer",
      "overlap-grad-reduce", "overlap-param-gather", "overlap-param-gather-with-optimizer-step", "ddp-bucket-size", "ddp-num-buckets", "ddp-average-in-collective", "grad-reduce-in-bf16", "grad-reduce-in-fp32",
      "accumulate-allreduce-grads-in-fp32", "no-gradient-accumulation-fusion", "main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype", "use-precision-aware-optimizer",
      "optimizer-cpu-offload", "optimizer-offload-fraction", "overlap-cpu-optimizer-d2h-h2d", "use-torch-optimizer-for-cpu-offload", "recompute-granularity", "recompute-method",
      "recompute-num-layers", "recompute-modules", "distribute-saved-activations", "recompute-activations", "fine-grained-activation-offloading", "offload-modules", "cpu-offloading",
      "cpu-offloading-num-layers", "attention-backend", "attention-softmax-in-fp32", "masked-softmax-fusion", "no-masked-softmax-fusion", "bias-gelu-fusion", "bias-swiglu-fusion",
      "bias-dropout-fusion", "rope-fusion", "cross-entropy-loss-fusion", "cross-entropy-fusion-impl", "apply-rope-fusion", "transformer-impl", "make-vocab-size-divisible-by",
      "moe-token-dispatcher-type", "moe-flex-dispatcher-backend", "moe-enable-deepep", "moe-grouped-gemm", "moe-permute-fusion", "moe-router-dtype", "moe-router-fusion", "moe-expert-capacity-factor",
      "moe-pad-expert-input-to-capacity", "moe-router-load-balancing-type", "moe-router-force-load-balancing", "moe-shared-expert-overlap", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute",
      "tp-comm-overlap", "tp-comm-bulk-dgrad", "tp-comm-bulk-wgrad", "align-param-gather", "overlap-p2p-communication", "no-overlap-p2p-communication", "defer-embedding-wgrad-compute",
      "fp8-format", "fp8-recipe", "fp8-param-gather", "fp8-margin", "first-last-layers-bf16", "fp4-format", "micro-batch-size", "global-batch-size", "use-megatron-fsdp", "data-parallel-sharding-strategy",
      "num-distributed-optimizer-instances", "enable-cuda-graph", "cuda-graph-impl", "cuda-graph-scope", "external-cuda-graph", "te-rng-tracker", "empty-unused-memory-level", "manual-gc", "mtp-num-layers",
      "cp-comm-type", "hierarchical-context-parallel-sizes", "calculate-per-token-loss", "nccl-ub", "use-tp-pp-dp-mapping", "deterministic-mode", "log-throughput"};
  // clang-format on
  return keys;
}

void warn_unknown(std::vector<std::string>& warnings, const Json& object, const Words& known,
                  const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto near = nearest(key, known);
    warnings.push_back(where + "/" + key + ": unknown key \"" + key.substr(0, 80) + "\" has no effect" +
                       (near ? "; did you mean \"" + *near + "\"?" : ""));
  }
}

bool is_auto(const Json* value) {
  return value && value->is_string() && value->get_ref<const std::string&>() == "auto";
}

// The value under `key`, or nullptr when absent, null or "auto".
const Json* stated(ObjectReader& r, const char* key) {
  const Json* v = r.get(key);
  return is_auto(v) ? nullptr : v;
}

std::optional<std::int64_t> whole(ObjectReader& r, const char* key, std::int64_t least = 0,
                                  std::int64_t most = std::int64_t{1} << 50) {
  return stated(r, key) ? r.integer(key, least, most) : std::nullopt;
}
std::optional<bool> flag(ObjectReader& r, const char* key) { return stated(r, key) ? r.boolean(key) : std::nullopt; }

std::optional<Place> device(ObjectReader& r) {
  if (!stated(r, "device")) return std::nullopt;
  const auto word = *r.one_of("device", {"none", "cpu", "nvme"});
  return word == "cpu" ? Place::kCpu : word == "nvme" ? Place::kNvme : Place::kNone;
}

Error contradiction(const std::string& where, const std::string& message, const std::string& remedy) {
  return {"conflict", where, message, remedy};
}

int apply_deepspeed(Plan& plan, const std::string& where) {
  if (plan.deepspeed.empty()) return -1;
  ObjectReader top(plan.deepspeed, where);
  for (const auto& [path, words] : deepspeed_keys()) {
    const Json* object = &plan.deepspeed;
    for (const auto& step : path.empty() ? Words{} : split(path, '/'))
      object = object && object->is_object() && object->contains(step) ? &object->at(step) : nullptr;
    if (object && object->is_object())
      warn_unknown(plan.warnings, *object, words, path.empty() ? where : where + "/" + path);
  }
  if (const auto n = whole(top, "train_micro_batch_size_per_gpu", 1, 1 << 24)) plan.micro_batch = *n;
  if (const auto n = whole(top, "gradient_accumulation_steps", 1, 1 << 24)) plan.gradient_accumulation = *n;
  (void)whole(top, "train_batch_size", 1, 1 << 30);
  const Json* zero_object = stated(top, "zero_optimization");
  if (!zero_object) return -1;
  ObjectReader zero(*zero_object, top.at("zero_optimization"));
  const auto stage = whole(zero, "stage", 0, 3);
  for (const char* key : {"reduce_bucket_size", "allgather_bucket_size", "sub_group_size",
                          "stage3_prefetch_bucket_size", "prefetch_bucket_size", "stage3_param_persistence_threshold",
                          "param_persistence_threshold", "stage3_max_live_parameters", "max_live_parameters",
                          "stage3_max_reuse_distance", "max_reuse_distance", "stage3_module_granularity_threshold"})
    (void)whole(zero, key);
  for (const char* key : {"stage3_model_persistence_threshold",
                          "model_persistence_threshold"})  // DeepSpeed's default is the largest integer
    if (stated(zero, key)) (void)zero.number(key, 0, 1e19);
  (void)whole(zero, "zero_hpz_partition_size", 1, 1 << 20);
  for (const char* key :
       {"contiguous_gradients", "reduce_scatter", "overlap_comm", "round_robin_gradients", "memory_efficient_linear"})
    (void)flag(zero, key);
  const int effective = static_cast<int>(stage.value_or(plan.sharding.stage));
  if (const Json* section = stated(zero, "offload_param")) {
    ObjectReader r(*section, zero.at("offload_param"));
    if (const auto place = device(r)) plan.offload.parameters = *place;
    if (const auto path = r.string("nvme_path")) plan.offload.nvme_path = *path;
    if (const auto pin = flag(r, "pin_memory")) plan.offload.pin = *pin;
    for (const char* key : {"buffer_count", "buffer_size", "max_in_cpu"}) (void)whole(r, key);
    if (effective < 3 && plan.offload.parameters != Place::kNone)
      throw contradiction(r.at("device"), "offload_param needs stage 3, and the stage is " + std::to_string(effective),
                          "set stage 3 or remove offload_param");
  }
  if (const Json* section = stated(zero, "offload_optimizer")) {
    ObjectReader r(*section, zero.at("offload_optimizer"));
    if (const auto place = device(r)) {
      plan.offload.optimizer = *place;
      if (*place == Place::kNone) plan.offload.optimizer_fraction = 1.0;
    }
    if (const auto path = r.string("nvme_path")) plan.offload.nvme_path = *path;
    if (const auto pin = flag(r, "pin_memory")) plan.offload.pin = *pin;
    if (const auto n = whole(r, "buffer_count", 1, 1 << 20)) plan.offload.buffers = *n;
    (void)whole(r, "buffer_size");
    if (stated(r, "ratio")) {
      plan.offload.optimizer_fraction = *r.number("ratio", 0, 1);
      if (plan.offload.optimizer_fraction < 1 && effective < 3)
        throw contradiction(r.at("ratio"),
                            "a ratio below 1 needs stage 3, and the stage is " + std::to_string(effective),
                            "set stage 3 or ratio 1.0");
    }
  }
  return stage ? static_cast<int>(*stage) : -1;
}

// One class or several, as a list or with commas between.
std::vector<std::string> class_names(ObjectReader& r, const std::string& key, const Json& v) {
  if (v.is_array()) return *r.strings(key);
  if (!v.is_string()) throw Error("wrong_type", r.at(key), "a class or a list of classes is needed, not " + brief(v));
  std::vector<std::string> names(1);
  for (const char c : v.get<std::string>()) {
    if (c == ',') names.emplace_back();
    else if (c != ' ') names.back() += c;
  }
  names.erase(std::remove(names.begin(), names.end(), std::string()), names.end());
  return names;
}

// accelerate (utils/dataclasses.py, set_auto_wrap_policy) and TrainingArguments: a size alone means wrapping by size.
void apply_wrapping(Plan& plan, ObjectReader& r, const std::string& policy_key, const std::string& classes_key, const std::string& size_key) {
  const std::int64_t least = stated(r, size_key.c_str()) ? whole(r, size_key.c_str()).value_or(0) : 0;
  const Json* classes = stated(r, classes_key.c_str());
  if (classes) plan.schedule.unit_classes = class_names(r, classes_key, *classes);
  const Json* policy = stated(r, policy_key.c_str());
  std::string word = policy && policy->is_string() ? policy->get<std::string>() : "";   // also torch's names of its policies
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (word == "no_wrap") {
    plan.schedule.unit_classes.clear();
    plan.schedule.unit_least_parameters = kNoWrap;
  } else if (word.rfind("size_based", 0) == 0 || (!policy && !classes && least > 0)) {
    plan.schedule.unit_classes.clear();
    plan.schedule.unit_least_parameters = least > 0 ? least : 100'000'000;   // torch/distributed/fsdp/wrap.py
  } else if (policy && !policy->is_boolean() && word.find("wrap") == std::string::npos) {   // TRANSFORMER_BASED_WRAP and the like: by block
    plan.schedule.unit_classes = class_names(r, policy_key, *policy);
  }
}

int apply_fsdp(Plan& plan, const std::string& where) {
  if (plan.fsdp.empty()) return -1;
  ObjectReader r(plan.fsdp, where);
  Words known = fsdp_keys();
  for (const auto& key : fsdp_keys()) known.push_back("fsdp_" + key);
  warn_unknown(plan.warnings, plan.fsdp, known, where);
  const auto either = [&](const char* key) -> std::string {  // accelerate prefixes every name with "fsdp_"
    const std::string prefixed = std::string("fsdp_") + key;
    return stated(r, prefixed.c_str()) ? prefixed : key;
  };
  int stage = -1;
  if (const auto key = either("sharding_strategy"); const Json* v = stated(r, key.c_str())) {
    const std::string word = v->is_string() ? v->get<std::string>() : brief(*v);
    const std::map<std::string, std::pair<int, bool>> strategies = {
        {"FULL_SHARD", {3, true}},          {"1", {3, true}},  {"SHARD_GRAD_OP", {3, false}},      {"2", {3, false}},
        {"NO_SHARD", {0, false}},           {"3", {0, false}}, {"HYBRID_SHARD", {3, true}},        {"4", {3, true}},
        {"HYBRID_SHARD_ZERO2", {3, false}}, {"5", {3, false}}, {"_HYBRID_SHARD_ZERO2", {3, false}}};
    const auto it = strategies.find(word);
    if (it == strategies.end())
      throw Error("unknown_word", r.at(key), brief(*v) + " is not known here",
                  "Known: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2");
    stage = it->second.first;
    if (stage == 3 && !(it->second.second && plan.sharding.reshard_stated &&
                        plan.sharding.reshard_after_forward != Sharding::Reshard::kFalse)) {
      plan.sharding.reshard_after_forward = it->second.second ? Sharding::Reshard::kTrue : Sharding::Reshard::kFalse;
      plan.sharding.reshard_stated = true;
    }
  }
  if (const auto key = either("reshard_after_forward"); const Json* v = stated(r, key.c_str())) {
    plan.sharding.reshard_stated = true;
    if (v->is_boolean())
      plan.sharding.reshard_after_forward = v->get<bool>() ? Sharding::Reshard::kTrue : Sharding::Reshard::kFalse;
    else if (v->is_number())
      plan.sharding.reshard_after_forward = Sharding::Reshard::kOver,
      plan.sharding.reshard_over = *r.integer(key, 1, 1 << 20);
    else if (v->is_string() && (*v == "always" || *v == "never" || *v == "default"))
      plan.sharding.reshard_after_forward = *v == "always"  ? Sharding::Reshard::kAlways
                                            : *v == "never" ? Sharding::Reshard::kFalse
                                                            : Sharding::Reshard::kTrue;
    else
      throw Error("wrong_type", r.at(key),
                  "true, false, \"always\", \"never\" or a number of ranks is needed, not " + brief(*v));
  }
  for (const char* name : {"offload_params", "cpu_offload"})
    if (const auto key = either(name); const Json* v = stated(r, key.c_str())) {
      bool on = false;
      if (v->is_object()) {
        ObjectReader policy(*v, r.at(key));
        on = flag(policy, "offload_params").value_or(false);
      } else {
        on = r.boolean(key).value_or(false);
      }
      plan.offload.parameters = plan.offload.gradients = plan.offload.optimizer = on ? Place::kCpu : Place::kNone;
    }
  if (const auto key = either("limit_all_gathers"); stated(r, key.c_str()))
    plan.schedule.limit_gathers = r.boolean(key);
  apply_wrapping(plan, r, either("auto_wrap_policy"), either("transformer_layer_cls_to_wrap"), either("min_num_params"));
  if (const auto key = either("bucket_cap_mb"); stated(r, key.c_str())) (void)r.number(key, 0, 1e9);
  return stage;
}

void apply_megatron(Plan& plan, const std::string& where) {
  if (plan.megatron.empty()) return;
  Json dashed = Json::object();  // Megatron's Python names carry underscores, its flags dashes
  for (const auto& [key, value] : plan.megatron.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    dashed[name] = value;
  }
  warn_unknown(plan.warnings, dashed, megatron_keys(), where);
  ObjectReader r(dashed, where);
  for (const auto& key : megatron_keys())
    if (const Json* v = stated(r, key.c_str());
        v && v->is_number() && (v->get<double>() < 0 || v->get<double>() > 1e15))
      throw Error("out_of_range", r.at(key), brief(*v) + " is out of range", "it must be at least 0 and at most 1e15");
  if (const auto n = whole(r, "tensor-model-parallel-size", 1, 1 << 20)) plan.tensor_parallel = *n;
  if (const auto n = whole(r, "pipeline-model-parallel-size", 1, 1 << 20)) plan.pipeline.degree = *n;
  if (const auto n = whole(r, "context-parallel-size", 1, 1 << 20)) plan.context_parallel = *n;
  if (const auto n = whole(r, "expert-model-parallel-size", 1, 1 << 20)) plan.expert_parallel = *n;
  if (const Json* v = stated(r, "sequence-parallel"); v && v->is_boolean()) plan.sequence_parallel = v->get<bool>();
  if (const auto n = whole(r, "micro-batch-size", 1, 1 << 24)) plan.micro_batch = *n;
  if (const Json* v = stated(r, "optimizer-cpu-offload"); v && v->is_boolean() && v->get<bool>() && plan.offload.optimizer == Place::kNone) {
    plan.offload.optimizer = Place::kCpu;
    plan.offload.optimizer_fraction = r.number("optimizer-offload-fraction", 0, 1).value_or(1);
  }
}

}  // namespace

int apply_framework_sections(Plan& plan, const std::string& where) {
  const int deepspeed = apply_deepspeed(plan, where + "/deepspeed");
  const int fsdp = apply_fsdp(plan, where + "/fsdp");
  apply_megatron(plan, where + "/megatron");
  return deepspeed >= 0 ? deepspeed : fsdp;
}

}  // namespace shardfit::job
