// Equations that published measurements confirm to a fraction of a percent, and the shortcut of the replay against the long way.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/trace.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

constexpr double kGiB = 1073741824.0;
const std::string kBase = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";

struct Setting {
  std::string model = "configs/meta-llama__Meta-Llama-3-8B.json";
  json job = json::object(), plan = json::object();
};

struct Ready {
  job::Job job;
  job::Plan plan;
  model::Model model;
  const hardware::Device& device;
  Request request() const { return {job, plan, model, device}; }
};

Ready ready(const Setting& s) {
  json j = {{"model", s.model}, {"method", "full"}, {"sequence_length", 4096}, {"precision", "bf16"}, {"attention", "sdpa"}, {"optimizer", {{"name", "adamw"}, {"implementation", "foreach"}, {"states", "bf16"}}},
            {"framework", {{"name", "ddp"}, {"trainer", "transformers"}, {"trainer_version", "4.45.2"}}}};
  j.merge_patch(s.job);
  json p = {{"gpu", "a100_sxm_80gb"}, {"gpus_per_node", 1}, {"micro_batch", 1}, {"activation_checkpointing", "full"}};
  p.merge_patch(s.plan);
  auto job = job::parse_job(j, kBase);
  auto plan = job::parse_plan(p);
  auto model = model::load_model(job.model_path());
  const auto& device = hardware::find_device(plan.gpu, "");
  return {std::move(job), std::move(plan), std::move(model), device};
}

Result estimate(const Setting& s) {
  const Ready r = ready(s);
  return estimate_memory(r.request());
}

// Pure bf16 and foreach AdamW: parameters, gradients, two states and the foreach copy of one, 2 bytes each. Measured on one A100:
// 67.463 GiB for Mistral-7B (10 x 7 241 732 096 B = 67.44), 74.80 for Llama-3-8B (foundation-model-stack/fms-acceleration).
TEST(Sanity, ForeachAdamWInBf16IsTenBytesAParameter) {
  const auto mistral = estimate({.model = "configs/mistralai__Mistral-7B-Instruct-v0.2.json"});
  EXPECT_EQ(mistral.memory.phase, "optimizer_step");
  EXPECT_NEAR(mistral.memory.allocated_peak / kGiB, 67.463, 0.1);
  EXPECT_NEAR(estimate({}).memory.allocated_peak / kGiB, 74.80, 0.15);
}

// The fused update has no copy: 8 bytes a parameter (pytorch/torchtune, Llama-2-7B: 51.6 GiB = 8.22).
TEST(Sanity, FusedAdamWHasNoCopy) {
  const auto r = estimate({.model = "configs/meta-llama__Llama-2-7b-hf.json", .job = {{"optimizer", {{"implementation", "fused"}}}, {"sequence_length", 512}}});
  EXPECT_NEAR(static_cast<double>(r.memory.allocated_peak) / 6738415616.0, 8.1, 0.2);
}

// FSDP with fp32 states over two GPUs: 20 bytes a parameter over the ranks (67.46 GiB measured, Mistral-7B).
TEST(Sanity, Fp32StatesUnderFsdpAreTwentyBytesOverTheRanks) {
  const auto r = estimate({.model = "configs/mistralai__Mistral-7B-Instruct-v0.2.json",
                           .job = {{"precision", {{"parameters", "fp32"}, {"master", "none"}, {"compute", "bf16"}, {"gradients", "fp32"}, {"reduce", "bf16"}}},
                                   {"optimizer", {{"states", "fp32"}}},
                                   {"framework", {{"name", "fsdp1"}}}},
                           .plan = {{"gpus_per_node", 2}, {"sharding", {{"stage", 3}, {"shard_degree", 2}}}}});
  EXPECT_NEAR(r.memory.allocated_peak / kGiB, 67.46, 0.2);
}

// Over four GPUs their share of the states is half of that, 20 bytes a parameter in the step (33.74 GiB measured), until activations win.
TEST(Sanity, OverFourRanksTheStepDecidesUntilActivationsWin) {
  const auto at = [](int micro) {
    return estimate({.model = "configs/mistralai__Mistral-7B-Instruct-v0.2.json",
                     .job = {{"precision", {{"parameters", "fp32"}, {"master", "none"}, {"compute", "bf16"}, {"gradients", "fp32"}, {"reduce", "bf16"}}},
                             {"optimizer", {{"states", "fp32"}}},
                             {"framework", {{"name", "fsdp1"}}}},
                     .plan = {{"gpus_per_node", 4}, {"micro_batch", micro}, {"activation_checkpointing", {{"kind", "full"}, {"reentrant", true}}}, {"sharding", {{"stage", 3}, {"shard_degree", 4}}}}});
  };
  const auto few = at(1), many = at(8);
  EXPECT_EQ(few.memory.phase, "optimizer_step");
  EXPECT_NEAR(few.memory.allocated_peak / kGiB, 33.74, 0.2);
  EXPECT_NE(many.memory.phase, "optimizer_step");
  EXPECT_GT(many.memory.allocated_peak, few.memory.allocated_peak);
}

// ZeRO-3 over four ranks: 16 bytes a parameter at rest (25.74 GiB measured, 16.1) and the fp32 gradients of a sub-group more in the step
// (31.38, 19.6): DeepSpeedExamples/training/bf16_master_weight, 6.86 B parameters.
TEST(Sanity, Zero3KeepsSixteenBytesAndStepsWithTwenty) {
  const auto r = estimate({.model = "models/deepspeed-custom-gpt-6.86b.json",
                           .job = {{"sequence_length", 512},
                                   {"attention", "eager"},
                                   {"precision", {{"parameters", "bf16"}, {"master", "fp32"}, {"compute", "bf16"}, {"gradients", "bf16"}, {"reduce", "bf16"}}},
                                   {"optimizer", {{"implementation", "fused"}, {"states", "fp32"}}},
                                   {"framework", {{"name", "deepspeed"}, {"version", "0.18"}, {"trainer", nullptr}, {"trainer_version", nullptr}}}},
                           .plan = {{"gpu", "h100_sxm_80gb"},
                                    {"gpus_per_node", 4},
                                    {"sharding", {{"stage", 3}, {"shard_degree", 4}}},
                                    {"deepspeed", {{"zero_optimization", {{"stage", 3}, {"overlap_comm", true}, {"contiguous_gradients", true}, {"reduce_bucket_size", 5e7}, {"stage3_param_persistence_threshold", 0}}}}}}});
  EXPECT_EQ(r.memory.phase, "optimizer_step");
  EXPECT_NEAR(r.memory.allocated_peak / kGiB, 31.38, 0.03 * 31.38);
  std::int64_t rest = 0;
  for (const auto& t : r.memory.terms)
    if (t.name == "parameters" || t.name == "fp32 master parameters" || t.name == "optimizer states" || t.name == "gradients") rest += t.bytes;
  EXPECT_NEAR(static_cast<double>(rest) / (static_cast<double>(r.parameters_total) / 4), 16.1, 4.0);
}

// LoRA with recomputation grows by what 4,096 tokens keep: 32 inputs of blocks (1.0 GiB) and one block's recomputation (1.0) where the
// loss makes no logits: 2.02 GiB a sequence measured; 4.98 where it does (fms-acceleration, Llama-3-8B, one A100).
TEST(Sanity, AdaptersGrowByCheckpointsOneBlockAndTheLogits) {
  const auto at = [](const char* loss, int micro) {
    return estimate({.job = {{"method", {{"kind", "lora"}, {"rank", 16}, {"alpha", 16}, {"dropout", 0.1}, {"targets", {"q_proj", "k_proj", "v_proj", "o_proj"}}}},
                             {"precision", {{"parameters", "bf16"}, {"master", "none"}, {"compute", "bf16"}, {"gradients", "bf16"}, {"autocast", true}}},
                             {"optimizer", {{"states", nullptr}}},
                             {"attention", "flash"},
                             {"loss", loss},
                             {"fused_kernels", {"rms_norm", "rope"}}},
                     .plan = {{"micro_batch", micro}, {"activation_checkpointing", {{"kind", "full"}, {"reentrant", true}}}}})
               .memory.allocated_peak /
           kGiB;
  };
  EXPECT_NEAR((at("fused_linear", 8) - at("fused_linear", 4)) / 4, 2.02, 0.08);
  EXPECT_NEAR((at("fused", 8) - at("fused", 4)) / 4, 4.98, 0.15);
}

// Not resharding after forward keeps 31 of 32 blocks of 218 112 000 bf16 parameters: 12.59 GiB (torchtitan 5940ddeb5: 59.5 - 49.6 - ...).
TEST(Sanity, NotReshardingKeepsThirtyOneBlocks) {
  const json job = {{"sequence_length", 8192}, {"precision", "bf16-mixed"}, {"optimizer", {{"states", "fp32"}}},
                    {"framework", {{"name", "fsdp2"}, {"trainer", "torchtitan"}, {"trainer_version", "5940ddeb5"}}}};
  auto plan = [](bool reshard) {
    return json{{"gpu", "h100_sxm_96gb"}, {"gpus_per_node", 8}, {"activation_checkpointing", "selective_op"}, {"sharding", {{"stage", 3}, {"shard_degree", 8}, {"reshard_after_forward", reshard}}}};
  };
  const auto kept = estimate({.job = job, .plan = plan(false)}), released = estimate({.job = job, .plan = plan(true)});
  EXPECT_NEAR((kept.memory.allocated_peak - released.memory.allocated_peak) / kGiB, 31 * 218112000.0 * 2 / kGiB, 0.05);
}

// The same Megatron test needs 24 MiB more on Hopper: the cuBLAS workspace grows from 8.125 to 32 MiB.
TEST(Sanity, HopperTakesTwentyFourMebibytesMore) {
  const json job = {{"precision", "bf16-mixed"}, {"framework", {{"name", "megatron"}, {"trainer", nullptr}, {"trainer_version", nullptr}}}, {"optimizer", {{"implementation", "fused"}, {"states", "fp32"}}}};
  const auto a = estimate({.model = "models/megatron-gpt-12x512.json", .job = job, .plan = {{"gpu", "a100_sxm_80gb"}}});
  const auto h = estimate({.model = "models/megatron-gpt-12x512.json", .job = job, .plan = {{"gpu", "h100_sxm_80gb"}}});
  EXPECT_NEAR(static_cast<double>(h.memory.allocated_peak - a.memory.allocated_peak) / (1 << 20), 23.9, 0.2);
}

// Accumulation without synchronisation keeps whole gradients in the reduce format: 4 bytes a parameter, on any number of ranks.
TEST(Sanity, NoSyncKeepsWholeGradients) {
  const json job = {{"precision", "bf16-mixed"}, {"optimizer", {{"states", "fp32"}}}, {"framework", {{"name", "fsdp2"}, {"trainer", "torchtitan"}}}};
  auto plan = [](bool no_sync) {
    return json{{"gpus_per_node", 8}, {"nodes", 8}, {"gradient_accumulation", 4}, {"accumulate_without_sync", no_sync}, {"sharding", {{"stage", 3}, {"shard_degree", 64}}}};
  };
  const auto with = estimate({.job = job, .plan = plan(true)}), without = estimate({.job = job, .plan = plan(false)});
  EXPECT_GT(with.memory.allocated_peak - without.memory.allocated_peak, 3.5 * 8.03e9);
}

// Between the first and the last of equal blocks memory changes evenly: replaying only those must give the peak of the long way.
TEST(Sanity, TheShortReplayAgreesWithTheLongOne) {
  for (const char* checkpointing : {"none", "full", "selective_op"})
    for (const char* framework : {"fsdp1", "fsdp2", "deepspeed"}) {
      SCOPED_TRACE(std::string(framework) + " " + checkpointing);
      const Ready r = ready({.job = {{"precision", "bf16-mixed"}, {"optimizer", {{"states", "fp32"}}}, {"framework", {{"name", framework}, {"trainer", nullptr}, {"trainer_version", nullptr}}}},
                             .plan = {{"gpus_per_node", 8}, {"activation_checkpointing", checkpointing}, {"sharding", {{"stage", 3}, {"shard_degree", 8}}}}});
      const Result brief = estimate_memory(r.request());
      const Trace trace = trace_memory(r.request());
      EXPECT_NEAR(static_cast<double>(brief.memory.allocated_peak), static_cast<double>(trace.result.memory.allocated_peak), 0.002 * static_cast<double>(brief.memory.allocated_peak));
      EXPECT_NEAR(static_cast<double>(brief.memory.reserved_peak), static_cast<double>(trace.result.memory.reserved_peak), 0.12 * static_cast<double>(brief.memory.reserved_peak));
      std::int64_t highest = 0;
      for (const auto& p : trace.points) highest = std::max(highest, p.allocated);
      EXPECT_EQ(highest, trace.result.memory.allocated_peak);
    }
}

TEST(Sanity, PipelineLayoutsMustNameEveryBlock) {
  Setting s{.model = "models/megatron-gpt-12x512.json",
            .job = {{"precision", "bf16-mixed"}, {"framework", {{"name", "megatron"}, {"trainer", nullptr}, {"trainer_version", nullptr}}}},
            .plan = {{"gpus_per_node", 2}, {"pipeline_parallel", {{"degree", 2}}}, {"megatron", {{"pipeline-model-parallel-layout", "Et*6|t*6L"}}}}};
  EXPECT_EQ(estimate(s).memory.by_stage.size(), 2u);
  s.plan["megatron"]["pipeline-model-parallel-layout"] = "Et*6|t*5L";
  EXPECT_ANY_THROW(estimate(s));
}

TEST(Sanity, MoreStagesThanBlocksAreRefused) {
  Setting s{.model = "models/megatron-gpt-12x512.json",
            .job = {{"precision", "bf16-mixed"}, {"framework", {{"name", "megatron"}, {"trainer", nullptr}, {"trainer_version", nullptr}}}},
            .plan = {{"gpus_per_node", 12}, {"pipeline_parallel", {{"degree", 12}}}, {"gradient_accumulation", 12}}};
  EXPECT_EQ(estimate(s).memory.by_stage.size(), 12u);
  s.plan["gpus_per_node"] = s.plan["pipeline_parallel"]["degree"] = 24;
  EXPECT_ANY_THROW(estimate(s));
}

}  // namespace
}  // namespace shardfit::memory
