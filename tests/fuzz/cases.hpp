// Jobs and plans that a user might write: every framework with its own keys, valid before they are spoilt.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mutate.hpp"

namespace shardfit::fuzz {

template <class T>
const T& one_of(Random& r, const std::vector<T>& values) {
  return values[r.below(values.size())];
}

inline nlohmann::json method_of(Random& r) {
  using nlohmann::json;
  static const std::vector<json> kMethods{"full",
                                          "full",
                                          {{"kind", "lora"}, {"rank", 16}, {"targets", "all-linear"}},
                                          {{"kind", "lora"}, {"rank", 64}, {"targets", {"q_proj", "v_proj"}}, {"dora", true}, {"modules_to_save", {"embed_tokens", "lm_head"}}, {"adapter_dtype", "fp32"}},
                                          {{"kind", "qlora"}, {"rank", 8}, {"targets", {"q_proj", "v_proj"}}, {"dropout", 0.1}},
                                          {{"kind", "qlora"}, {"rank", 8}, {"targets", "all-linear"}, {"quantization", "int8"}, {"quant_storage", "bf16"}, {"double_quantization", true}},
                                          {{"kind", "ia3"}, {"targets", {"k_proj"}}, {"feedforward", {"down_proj"}}},
                                          {{"kind", "partial"}, {"trainable", {"model.layers.*.mlp"}}}};
  return one_of(r, kMethods);
}

inline nlohmann::json job_of(Random& r) {
  using nlohmann::json;
  static const std::vector<std::string> kFrameworks{"shardfit", "fsdp2", "fsdp1", "deepspeed", "ddp", "megatron", "other"};
  static const std::vector<std::string> kTrainers{"transformers", "torchtitan", "torchtune", "litgpt", "accelerate", "fsdp_qlora", "llama-recipes", "axolotl", "composer", "xtuner", "someone's"};
  static const std::vector<std::string> kVersions{"4.45.2", "4.52.0", "0.9", "2024-03-01", "775a486", "main", "2.4.1"};
  static const std::vector<json> kLosses{"plain", "fused", {{"kind", "chunked"}, {"chunks", 8}}, {{"kind", "chunked"}, {"chunk_tokens", 128}, {"over", "hidden"}}, "fused_linear", {{"kind", "plain"}, {"keeps_outputs", true}}};
  static const std::vector<json> kPrecisions{"bf16-mixed", "bf16", "fp32", "fp16-mixed",
                                             {{"parameters", "bf16"}, {"master", "fp32"}, {"compute", "bf16"}, {"gradients", "fp32"}, {"reduce", "fp32"}},
                                             {{"parameters", "fp32"}, {"compute", "fp8"}, {"fp8_recipe", "rowwise"}, {"autocast", true}, {"norms", "fp32"}}};
  static const std::vector<std::string> kOptimizers{"adamw", "sgd", "lion", "adafactor", "muon", "adam", "galore_adamw"};
  static const std::vector<std::string> kImplementations{"fused", "foreach", "single", "cpu"}, kStates{"fp32", "bf16", "int8", "int4"};
  static const std::vector<std::string> kAttention{"eager", "flash", "sdpa", "flash2", "flex", "cudnn"}, kCompile{"block", "block+loss", "model", "graph"};
  json job{{"model", "config.json"},
           {"method", method_of(r)},
           {"sequence_length", r.chance(80) ? 1 << r.below(17) : 1 + r.below(9000)},
           {"precision", one_of(r, kPrecisions)},
           {"loss", one_of(r, kLosses)},
           {"optimizer", {{"name", one_of(r, kOptimizers)}}},
           {"framework", {{"name", one_of(r, kFrameworks)}}}};
  if (r.chance(30)) job["attention"] = one_of(r, kAttention);
  if (r.chance(20)) job["compile"] = one_of(r, kCompile);
  if (r.chance(40)) job["framework"]["trainer"] = one_of(r, kTrainers);
  if (r.chance(30)) job["framework"]["trainer_version"] = one_of(r, kVersions);
  if (r.chance(20)) job["framework"]["version"] = one_of(r, kVersions);
  if (r.chance(10)) job["framework"]["label"] = r.chance(50) ? "colossalai gemini" : "fairscale";
  if (r.chance(20)) job["software"] = {{"torch", one_of(r, kVersions)}, {"cuda", "12.4"}};
  if (r.chance(30)) job["optimizer"]["implementation"] = one_of(r, kImplementations);
  if (r.chance(30)) job["optimizer"]["states"] = one_of(r, kStates);
  if (r.chance(10)) job["optimizer"]["in_backward"] = true;
  if (r.chance(10)) job["optimizer"]["paged"] = true;
  if (r.chance(20)) job["fused_kernels"] = {"swiglu", "rms_norm", "rope"};
  if (r.chance(10)) job["decoder_sequence_length"] = 1 << r.below(10);
  if (r.chance(10)) job["global_batch_sequences"] = 1 << r.below(8);
  return job;
}

inline nlohmann::json deepspeed_of(Random& r, std::int64_t stage) {
  using nlohmann::json;
  static const std::vector<std::string> kBytes{"reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
                                               "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_module_granularity_threshold", "stage3_model_persistence_threshold"};
  static const std::vector<std::string> kFlags{"contiguous_gradients", "reduce_scatter", "overlap_comm", "round_robin_gradients", "memory_efficient_linear", "stage3_gather_16bit_weights_on_model_save",
                                               "zero_quantized_weights", "zero_quantized_gradients", "load_from_fp32_weights"};
  json zero{{"stage", stage}};
  for (const auto& key : kBytes)
    if (r.chance(25)) zero[key] = r.chance(10) ? json("auto") : json(std::int64_t{1} << r.below(40));
  for (const auto& key : kFlags)
    if (r.chance(15)) zero[key] = r.chance(50);
  if (r.chance(10)) zero["zero_hpz_partition_size"] = 2;
  if (r.chance(10)) zero["mics_shard_size"] = 2;
  if (r.chance(30)) zero["offload_optimizer"] = {{"device", r.chance(50) ? "cpu" : "nvme"}, {"nvme_path", "/nvme"}, {"buffer_count", 1 + r.below(8)}, {"pin_memory", r.chance(50)}, {"ratio", stage == 3 ? 0.3 : 1.0}};
  if (stage == 3 && r.chance(30)) zero["offload_param"] = {{"device", r.chance(50) ? "cpu" : "nvme"}, {"nvme_path", "/nvme"}, {"buffer_count", 5}, {"buffer_size", 1e8}, {"max_in_cpu", 1e9}};
  json section{{"zero_optimization", zero}};
  if (r.chance(20)) section["bf16"] = {{"enabled", true}, {"bf16_master_weights_and_grads", r.chance(50)}, {"bf16_optimizer_states", r.chance(50)}, {"immediate_grad_update", r.chance(50)}};
  if (r.chance(10)) section["fp16"] = {{"enabled", true}, {"initial_scale_power", 16}, {"fp16_master_weights_and_grads", r.chance(50)}};
  if (r.chance(20)) section["activation_checkpointing"] = {{"partition_activations", r.chance(50)}, {"cpu_checkpointing", r.chance(50)}, {"contiguous_memory_optimization", r.chance(50)}, {"number_checkpoints", 1 + r.below(100)}};
  if (r.chance(10)) section["data_types"] = {{"grad_accum_dtype", r.chance(50) ? "fp32" : "bf16"}};
  if (r.chance(10)) section["torch_autocast"] = {{"enabled", true}, {"dtype", "bfloat16"}};
  return section;
}

inline nlohmann::json fsdp_of(Random& r) {
  using nlohmann::json;
  static const std::vector<std::string> kStrategies{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}, kPrefetch{"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
  json section = json::object();
  if (r.chance(40)) section["sharding_strategy"] = one_of(r, kStrategies);
  if (r.chance(30)) section["backward_prefetch"] = one_of(r, kPrefetch);
  for (const char* key : {"forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading", "offload_params", "activation_checkpointing", "flatten_parameters"})
    if (r.chance(15)) section[key] = r.chance(50);
  if (r.chance(20)) section["auto_wrap_policy"] = r.chance(50) ? "TRANSFORMER_BASED_WRAP" : "SIZE_BASED_WRAP";
  if (r.chance(10)) section["min_num_params"] = std::int64_t{1} << r.below(35);
  if (r.chance(10)) section["custom_sharded_layers"] = {"tok_embeddings", "output"};
  if (r.chance(10)) section["reshard_after_forward"] = r.chance(50) ? json(true) : json(2);
  if (r.chance(10)) section["bucket_cap_mb"] = 1 << r.below(10);
  return section;
}

inline nlohmann::json megatron_of(Random& r) {
  using nlohmann::json;
  static const std::vector<std::string> kFlags{"use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather", "accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16", "optimizer-cpu-offload",
                                               "use-precision-aware-optimizer", "moe-grouped-gemm", "moe-permute-fusion", "cross-entropy-loss-fusion", "recompute-activations", "distribute-saved-activations",
                                               "use-megatron-fsdp", "fp8-param-gather", "delay-wgrad-compute", "moe-pad-expert-input-to-capacity"};
  static const std::vector<std::string> kGranularity{"full", "selective"}, kDispatch{"allgather", "alltoall", "flex"}, kDtypes{"fp32", "bf16", "fp16", "fp8"};
  json section = json::object();
  for (const auto& key : kFlags)
    if (r.chance(15)) section[key] = r.chance(80);
  if (r.chance(20)) section["recompute-granularity"] = one_of(r, kGranularity), section["recompute-method"] = r.chance(50) ? "uniform" : "block", section["recompute-num-layers"] = 1 + r.below(20);
  if (r.chance(10)) section["recompute-modules"] = {"core_attn", "mlp", "moe_act"};
  if (r.chance(15)) section["moe-token-dispatcher-type"] = one_of(r, kDispatch);
  if (r.chance(10)) section["moe-expert-capacity-factor"] = 1.25;
  if (r.chance(10)) section["optimizer-offload-fraction"] = 0.5;
  if (r.chance(10)) section["exp-avg-dtype"] = one_of(r, kDtypes), section["main-params-dtype"] = one_of(r, kDtypes);
  if (r.chance(10)) section["make-vocab-size-divisible-by"] = 1 << r.below(12);
  if (r.chance(10)) section["mtp-num-layers"] = 1 + r.below(3);
  if (r.chance(10)) section["pipeline-model-parallel-layout"] = r.chance(50) ? "Et*3|(tt|)*4L" : "Ett|tt|L";
  if (r.chance(10)) section["decoder-first-pipeline-num-layers"] = r.below(8);
  if (r.chance(10)) section["expert-tensor-parallel-size"] = 1 << r.below(3);
  if (r.chance(10)) section["data-parallel-sharding-strategy"] = "optim_grads_params";
  return section;
}

inline nlohmann::json plan_of(Random& r) {
  using nlohmann::json;
  static const std::vector<std::string> kGpus{"h100_sxm_80gb", "a100_sxm_40gb", "rtx_4090_24gb", "cpu", "mi300x_192gb", "t4_16gb", "b200_sxm_180gb", "v100_sxm_16gb"};
  static const std::vector<json> kCheckpointing{"none", "full", "selective_op", {{"every", 2}}, {{"kind", "selective"}, {"modules", {"mlp"}}}, {{"kind", "full"}, {"reentrant", true}}, {{"kind", "selective_op"}, {"save", "all_compute"}}};
  static const std::vector<std::string> kPlaces{"none", "cpu", "nvme"}, kSchedules{"serial", "overlapped", "adaptive"}, kPipelines{"1f1b", "interleaved_1f1b", "gpipe"};
  const std::int64_t stage = static_cast<std::int64_t>(r.below(4)), data = std::int64_t{1} << r.below(5);
  const std::int64_t tensor = r.chance(20) ? std::int64_t{1} << r.below(4) : 1, context = r.chance(10) ? 2 : 1, pipeline = r.chance(15) ? std::int64_t{1} << r.below(4) : 1;
  const std::int64_t gpus = data * tensor * context * pipeline, node = std::min<std::int64_t>(gpus, 8);
  const bool hybrid = stage > 0 && data >= 4 && r.chance(15);
  json plan{{"gpu", one_of(r, kGpus)},
            {"gpus_per_node", node},
            {"nodes", gpus / node},
            {"micro_batch", std::int64_t{1} << r.below(5)},
            {"gradient_accumulation", std::int64_t{1} << r.below(4)},
            {"activation_checkpointing", one_of(r, kCheckpointing)},
            {"sharding", {{"stage", stage}, {"shard_degree", !stage ? 1 : hybrid ? data / 2 : data}, {"replicate_degree", !stage ? data : hybrid ? 2 : 1}}}};
  if (tensor > 1) plan["tensor_parallel"] = tensor, plan["sequence_parallel"] = r.chance(50);
  if (context > 1) plan["context_parallel"] = context, plan["sharding"]["over_context_parallel"] = r.chance(50);
  if (pipeline > 1) plan["pipeline_parallel"] = {{"degree", pipeline}, {"schedule", one_of(r, kPipelines)}, {"virtual_stages", 1 + r.below(3)}};
  if (r.chance(10)) plan["expert_parallel"] = std::int64_t{1} << r.below(4);
  if (r.chance(15)) plan["sharding"]["reshard_after_forward"] = r.chance(50) ? json(false) : json("always");
  if (r.chance(20)) plan["accumulate_without_sync"] = true;
  if (r.chance(30)) plan["device_memory_gib"] = 16;
  if (r.chance(15)) plan["allocator"] = {{"expandable_segments", true}};
  if (r.chance(10)) plan["checkpoint_load"] = "full_copy_per_gpu";
  if (r.chance(40))
    plan["offload"] = {{"parameters", one_of(r, kPlaces)}, {"gradients", one_of(r, kPlaces)}, {"optimizer", one_of(r, kPlaces)}, {"activations", kPlaces[r.below(2)]}, {"optimizer_fraction", 0.1 * static_cast<double>(r.below(11))},
                       {"schedule", one_of(r, kSchedules)}, {"nvme_path", "/nvme"}, {"pin", r.chance(70)}, {"buffers", 1 + r.below(8)}, {"buffer_bytes", std::int64_t{1} << r.below(32)}, {"tile_elements", std::int64_t{1} << r.below(30)}};
  if (r.chance(20)) {
    plan["schedule"] = {{"unit", r.chance(70) ? json(1 + r.below(6)) : json({"LlamaDecoderLayer"})}, {"prefetch_blocks", r.below(5)}, {"limit_gathers", r.chance(50)}};
    for (const char* key : {"prefetch_bytes", "gather_bucket_bytes", "reduce_bucket_bytes", "keep_resident_below"})
      if (r.chance(30)) plan["schedule"][key] = std::int64_t{1} << r.below(40);
  }
  if (r.chance(40)) plan["deepspeed"] = deepspeed_of(r, stage);
  if (r.chance(30)) plan["fsdp"] = fsdp_of(r);
  if (r.chance(30)) plan["megatron"] = megatron_of(r);
  return plan;
}

}  // namespace shardfit::fuzz
