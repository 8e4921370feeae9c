// FSDP2 and torchtitan: what golden steps (tests/truth/fake_gpu) cannot hold, because a run is one rank of one version.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

constexpr double kGiB = 1073741824.0;

MemoryEstimate estimate(const json& job_changes, const json& plan_changes) {
  json j = {{"model", "configs/meta-llama__Meta-Llama-3-8B.json"}, {"method", "full"}, {"sequence_length", 8192}, {"precision", "bf16-mixed"}, {"attention", "sdpa"}, {"loss", "plain"},
            {"optimizer", {{"name", "adamw"}, {"implementation", "fused"}, {"states", "fp32"}}}, {"framework", {{"name", "fsdp2"}, {"trainer", "torchtitan"}, {"trainer_version", "5940dde"}}}};
  j.merge_patch(job_changes);
  json p = {{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", 8}, {"sharding", {{"stage", 3}, {"shard_degree", 8}}}, {"micro_batch", 1}, {"activation_checkpointing", "full"}, {"allocator", {{"expandable_segments", true}}}};
  p.merge_patch(plan_changes);
  const auto job = job::parse_job(j, std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth");
  const auto plan = job::parse_plan(p);
  const auto model = model::load_model(job.model_path());
  return estimate_memory({job, plan, model, hardware::find_device(plan.gpu, "")}).memory;
}

json version(const std::string& commit) { return {{"framework", {{"trainer_version", commit}}}}; }

// Llama-3-8B on 2 stages x 4 ranks, 4 micro batches, torch.distributed.pipelining of torch 2.6 and torchtitan 5940dde on the pretended
// GPU, each stage by itself: allocated and reserved peaks of the third step.
TEST(Fsdp2, PipelineStagesHoldWhatTorchHolds) {
  const json plan = {{"sharding", {{"shard_degree", 4}, {"reshard_after_forward", false}}}, {"pipeline_parallel", {{"degree", 2}, {"schedule", "1f1b"}}}, {"gradient_accumulation", 4}};
  const auto m = estimate({{"software", {{"torch", "2.6.0"}}}}, plan);
  ASSERT_EQ(m.by_stage.size(), 2u);
  const double allocated[] = {39.207, 55.729}, reserved[] = {44.789, 61.781};
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(static_cast<double>(m.by_stage[i].allocated_peak) / kGiB / allocated[i], 1, 0.004) << "stage " << i;
    EXPECT_NEAR(static_cast<double>(m.by_stage[i].reserved_peak) / kGiB / reserved[i], 1, 0.06) << "stage " << i;
  }
  // torch 2.9 no longer keeps the outputs of a stage: 4 x 8192 x 128256 logits of 2 bytes
  const auto later = estimate({{"software", {{"torch", "2.11.0"}}}, {"framework", {{"trainer_version", "d9bdfbb"}}}}, plan);
  EXPECT_GT(static_cast<double>(m.by_stage[1].allocated_peak - later.by_stage[1].allocated_peak), 4.0 * 8192 * 128256 * 2);
}

// Re-sharding over 2 of 8 ranks: half of every block stays between forward and backward.
TEST(Fsdp2, ReshardingOverFewerRanksKeepsParts) {
  const auto of = [](const json& reshard) { return estimate(json::object(), {{"sharding", {{"reshard_after_forward", reshard}}}, {"activation_checkpointing", "full"}}).allocated_peak; };
  const double block = 218112000.0 * 2;
  EXPECT_NEAR(static_cast<double>(of(2) - of("always")) / (32 * block / 2), 1, 0.01);
  EXPECT_GT(of(false), of(2));
}

// Llama-3.1-70B over 64 ranks, torch 2.11 and torchtitan d9bdfbb on the pretended GPU: as it is (one gather ahead in backward), and with
// set_modules_to_forward_prefetch and _backward_prefetch of three blocks.
TEST(Fsdp2, GathersAheadAreBuffersOfABlockEach) {
  const auto of = [](const json& schedule) {
    return static_cast<double>(estimate({{"model", "configs/meta-llama__Meta-Llama-3.1-70B.json"}, {"sequence_length", 512}, {"software", {{"torch", "2.11.0"}}}, {"framework", {{"trainer_version", "d9bdfbb"}}}},
                                        {{"nodes", 8}, {"sharding", {{"shard_degree", 64}}}, {"schedule", schedule}})
                                   .allocated_peak) / kGiB;
  };
  EXPECT_NEAR(of(json::object()) / 24.758, 1, 0.02);
  EXPECT_NEAR(of({{"prefetch_blocks", 3}}) / 27.457, 1, 0.01);
}

// The ring of context parallelism gathers k and v of all its ranks (here of 32 repeated heads of 128), once more in backward. Positions
// a rank are the same 8192.
TEST(Fsdp2, TheRingOfContextParallelismGathersAllRanks) {
  const auto of = [](int ranks) {
    const auto m = estimate({{"sequence_length", 8192 * ranks}, {"loss", "fused_linear"}}, {{"nodes", ranks / 4}, {"context_parallel", ranks}, {"sharding", {{"shard_degree", 2}}}});
    EXPECT_EQ(m.phase, "backward");
    return static_cast<double>(m.allocated_peak);
  };
  const double gathered = 2.0 * 8192 * 4096 * 2;   // k and v of one rank
  EXPECT_NEAR((of(32) - of(16)) / (16 * gathered), 1, 0.01);
}

// A traced graph takes the loss as it is written: 12 bytes a logit at its backward, where a compiled one has 4.
TEST(Fsdp2, GraphsTakeTheLossAsWritten) {
  const auto graph = estimate({{"compile", "graph"}, {"framework", {{"trainer_version", "27aa490"}}}, {"software", {{"torch", "2.12.0"}}}}, json::object());
  const auto compiled = estimate({{"compile", "block+loss"}, {"framework", {{"trainer_version", "27aa490"}}}, {"software", {{"torch", "2.12.0"}}}}, json::object());
  EXPECT_NEAR(static_cast<double>(graph.allocated_peak - compiled.allocated_peak) / (8.0 * 8192 * 128256), 1, 0.15);
}

// graph_trainer's default policy keeps every product and recomputes the rest: more than every second product, less than everything.
TEST(Fsdp2, KeepingEveryProductLiesBetween) {
  const auto of = [](const json& checkpointing) {
    return estimate({{"compile", "graph"}, {"framework", {{"trainer_version", "27aa490"}}}}, {{"activation_checkpointing", checkpointing}, {"micro_batch", 2}}).allocated_peak;
  };
  const auto second = of("selective_op"), every = of({{"kind", "selective_op"}, {"save", "all_compute"}}), all = of("none");
  // what it keeps more, a token and block: k, the attention's projection and the gate's partner, less v's and w1's pair kept either way
  EXPECT_NEAR(static_cast<double>(every - second) / (2.0 * 8192 * 32 * 2 * (1024 + 4096 + 14336)), 1, 0.02);
  EXPECT_LT(every, all);
}

// torchtitan tells NCCL to record no streams since e62573d4c (10 April 2024); before, tensors of collectives came back late.
TEST(Fsdp2, CollectivesOfTensorParallelismRecordStreamsUntilApril2024) {
  const json job = {{"model", "configs/meta-llama__Llama-2-7b-hf.json"}, {"sequence_length", 2048}}, plan = {{"micro_batch", 16}, {"sharding", {{"shard_degree", 4}}}, {"tensor_parallel", 2}, {"sequence_parallel", true}};
  auto before = job, after = job;
  before.merge_patch(version("83c879f"));
  after.merge_patch(version("40f8fd0"));
  EXPECT_GT(static_cast<double>(estimate(before, plan).reserved_peak), 1.4 * static_cast<double>(estimate(after, plan).reserved_peak));
}

}  // namespace
}  // namespace shardfit::memory
