// What shardfit-train cannot run is refused by the name of its key; nothing stated is passed over in silence.
#include "selector/schedule/supported.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"

namespace shardfit::schedule {
namespace {

struct Case {
  std::string key;    // where it stands, and what the refusal names
  std::string value;  // JSON
};

Json with(Json object, const std::string& pointer, const std::string& value) {
  object[Json::json_pointer(pointer)] = Json::parse(value);
  return object;
}

const Json kJob = {{"model", "m"}, {"sequence_length", 24}, {"global_batch_sequences", 8}};
const Json kPlan = {{"gpu", "cpu"}, {"gpus_per_node", 4}, {"micro_batch", 2}};

// The key that the refusal names, "" where the setting is accepted.
std::string refused(const Json& job, const Json& plan, const model::Model* model = nullptr) {
  try {
    check_supported(job::parse_job(job, "."), job::parse_plan(plan), model);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, "not_supported") << error.what();
    EXPECT_EQ(error.exit_status, kExitBadInput);
    return error.where;
  }
  return "";
}

TEST(Supported, PlanSettingsAreRefusedByTheirKey) {
  // clang-format off
  const std::vector<Case> cases = {
      {"/offload/parameters", R"("cpu")"}, {"/offload/parameters", R"("nvme")"}, {"/offload/gradients", R"("cpu")"}, {"/offload/gradients", R"("nvme")"},
      {"/offload/optimizer", R"("cpu")"}, {"/offload/optimizer", R"("nvme")"}, {"/offload/activations", R"("cpu")"}, {"/offload/activations", R"("nvme")"},
      {"/offload/optimizer_fraction", "0.5"}, {"/offload/schedule", R"("overlapped")"}, {"/offload/schedule", R"("adaptive")"}, {"/offload/nvme_path", R"("/x")"},
      {"/offload/buffers", "4"}, {"/offload/buffer_bytes", "4096"}, {"/offload/tile_elements", "64"},
      {"/sharding/stage", "1"}, {"/sharding/stage", "2"},
      {"/tensor_parallel", "2"}, {"/context_parallel", "2"}, {"/expert_parallel", "2"}, {"/sequence_parallel", "true"}, {"/pipeline_parallel/degree", "2"},
      {"/pipeline_parallel/schedule", R"("gpipe")"}, {"/pipeline_parallel/virtual_stages", "2"},
      {"/schedule/unit", "2"}, {"/schedule/unit", R"(["A", "B"])"}, {"/schedule/prefetch_bytes", "64"}, {"/schedule/gather_bucket_bytes", "64"},
      {"/schedule/reduce_bucket_bytes", "64"}, {"/schedule/keep_resident_below", "64"}, {"/schedule/limit_gathers", "false"},
      {"/allocator/expandable_segments", "true"}, {"/checkpoint_load", R"("full_copy_per_gpu")"},
      {"/activation_checkpointing", R"("selective_op")"}, {"/activation_checkpointing", R"("selective")"},
      {"/deepspeed/zero_optimization/cpu_offload", "true"}, {"/deepspeed/zero_optimization/zero_hpz_partition_size", "2"},
      {"/deepspeed/zero_optimization/zero_quantized_weights", "true"}, {"/deepspeed/activation_checkpointing/cpu_checkpointing", "true"}, {"/deepspeed/fp16/enabled", "true"},
      {"/fsdp/fsdp_activation_cpu_offload", "true"}, {"/megatron/optimizer-cpu-offload", "true"}, {"/megatron/cpu-offloading", "true"}};
  // clang-format on
  for (const auto& [key, value] : cases) EXPECT_EQ(refused(kJob, with(kPlan, key, value)), "/plan" + key) << value;
  // Where the key that is named is another than the one that stands there.
  EXPECT_EQ(refused(kJob, with(kPlan, "/activation_checkpointing", R"({"kind": "full", "modules": ["mlp"]})")),
            "/plan/activation_checkpointing/modules");
  EXPECT_EQ(refused(kJob, with(kPlan, "/activation_checkpointing", R"({"kind": "full", "save": "all_compute"})")),
            "/plan/activation_checkpointing/save");
  EXPECT_EQ(refused(kJob, with(kPlan, "/deepspeed",
                               R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}})")),
            "/plan/offload/optimizer");
  EXPECT_EQ(refused(kJob, with(kPlan, "/deepspeed", R"({"zero_optimization": {"stage": 2}})")), "/plan/sharding/stage");
  EXPECT_EQ(refused(kJob, with(kPlan, "/fsdp", R"({"fsdp_offload_params": true})")), "/plan/offload/parameters");
  EXPECT_EQ(refused(kJob, with(kPlan, "/megatron", R"({"optimizer_cpu_offload": true})")),
            "/plan/megatron/optimizer-cpu-offload");
  EXPECT_EQ(refused(kJob, with(kPlan, "/sharding", R"({"stage": 3, "shard_degree": 2, "replicate_degree": 2})")),
            "/plan/sharding/replicate_degree");
  EXPECT_EQ(refused(kJob, with(kPlan, "/sharding", R"({"stage": 3, "reshard_after_forward": 2})")),
            "/plan/sharding/reshard_after_forward");
}

TEST(Supported, JobSettingsAreRefusedByTheirKey) {
  // clang-format off
  const std::vector<Case> cases = {
      {"/method", R"({"kind": "lora", "rank": 4})"}, {"/method", R"({"kind": "qlora", "rank": 4})"}, {"/method", R"({"kind": "ia3"})"},
      {"/method", R"({"kind": "partial", "trainable": ["model.norm"]})"},
      {"/precision", R"("fp16-mixed")"}, {"/precision/autocast", "true"}, {"/precision/fp8_recipe", R"("delayed")"},
      {"/precision/parameters", R"("nf4")"}, {"/precision/compute", R"("fp8")"}, {"/precision/compute", R"("fp16")"}, {"/precision/reduce", R"("fp16")"},
      {"/precision/norms", R"("bf16")"},
      {"/optimizer/name", R"("adam")"}, {"/optimizer/name", R"("sgd")"}, {"/optimizer/implementation", R"("foreach")"}, {"/optimizer/implementation", R"("single")"},
      {"/optimizer/implementation", R"("cpu")"}, {"/optimizer/states", R"("int8")"}, {"/optimizer/in_backward", "true"}, {"/optimizer/paged", "true"},
      {"/compile", R"("block")"}, {"/compile", R"("graph")"},
      {"/attention", R"("eager")"}, {"/attention", R"("flash1")"}, {"/attention", R"("flash2")"}, {"/attention", R"("flash3")"}, {"/attention", R"("cudnn")"}, {"/attention", R"("flex")"},
      {"/loss", R"("fused")"}, {"/loss/over", R"("logits")"}, {"/loss/keeps_outputs", "true"}, {"/fused_kernels", R"(["swiglu"])"},
      {"/framework/name", R"("fsdp2")"}, {"/framework/trainer", R"("transformers")"}, {"/decoder_sequence_length", "8"}};
  // clang-format on
  for (const auto& [key, value] : cases) EXPECT_EQ(refused(with(kJob, key, value), kPlan), "/job" + key) << value;
  EXPECT_EQ(refused(with(kJob, "/precision", R"({"parameters": "fp16", "master": "fp32", "compute": "bf16"})"), kPlan),
            "/job/precision/parameters");
  EXPECT_EQ(refused(with(kJob, "/precision", R"({"parameters": "fp32", "compute": "bf16", "norms": "fp32"})"), kPlan),
            "/job/precision/norms");
}

TEST(Supported, WhatTheRuntimeDoesAnywayIsAccepted) {
  // clang-format off
  const std::vector<Case> plans = {{"/offload/pin", "true"}, {"/offload/optimizer_fraction", "1.0"}, {"/offload/schedule", R"("serial")"}, {"/schedule/unit", R"("block")"},
                                   {"/schedule/prefetch_blocks", "1"}, {"/schedule/keep_resident_below", "0"}, {"/schedule/limit_gathers", "true"}, {"/sharding/stage", "3"},
                                   {"/activation_checkpointing", R"({"every": 2})"}, {"/pipeline_parallel", R"({"degree": 1, "schedule": "1f1b", "virtual_stages": 1})"},
                                   {"/deepspeed", R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}, "fp16": {"enabled": "auto"}})"}};
  // clang-format on
  for (const auto& [key, value] : plans) EXPECT_EQ(refused(kJob, with(kPlan, key, value)), "") << key;
  // clang-format off
  const std::vector<Case> jobs = {{"/optimizer", R"({"name": "adamw", "implementation": "fused", "states": "fp32", "in_backward": false, "paged": false})"},
                                  {"/attention", R"("flash")"}, {"/attention", R"("sdpa")"}, {"/loss", R"("plain")"}, {"/loss", R"({"kind": "chunked", "chunk_tokens": 8})"},
                                  {"/loss", R"("fused_linear")"}, {"/fused_kernels", "[]"}, {"/compile", R"("none")"}, {"/precision", R"("fp32")"}, {"/precision", R"("bf16")"},
                                  {"/precision", R"({"parameters": "bf16", "master": "fp32", "compute": "bf16", "gradients": "bf16", "reduce": "fp32"})"}, {"/method", R"({"kind": "full"})"}};
  // clang-format on
  for (const auto& [key, value] : jobs) EXPECT_EQ(refused(with(kJob, key, value), kPlan), "") << key << " " << value;
}

TEST(Supported, AWrappedClassMustBeTheModelsBlock) {
  model::Model model;
  model.family = "llama";
  model.is_causal = true;
  EXPECT_EQ(refused(kJob, with(kPlan, "/schedule/unit", R"(["LlamaDecoderLayer"])"), &model), "");
  EXPECT_EQ(refused(kJob, with(kPlan, "/schedule/unit", R"(["LlamaMLP"])"), &model), "/plan/schedule/unit");
}

TEST(Supported, OneWarningNamesTheSectionsKeysWithoutEffect) {
  EXPECT_EQ(without_effect(job::parse_plan(kPlan)), std::nullopt);
  const auto plan = job::parse_plan(with(
      kPlan, "/deepspeed",
      R"({"zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": "auto"}, "aio": {"queue_depth": 4}, "gradient_clipping": 1.0})"));
  EXPECT_EQ(
      without_effect(plan),
      "keys of the plan without effect in shardfit-train: deepspeed/aio/queue_depth, deepspeed/gradient_clipping, deepspeed/zero_optimization/overlap_comm");
}

}  // namespace
}  // namespace shardfit::schedule
