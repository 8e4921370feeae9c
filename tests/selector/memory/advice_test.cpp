#include "selector/memory/advice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pricing/offers.hpp"
#include "selector/hardware/device.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/supported.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

struct Case {
  job::Job job;
  job::Plan plan;
  model::Model model;
  pricing::Host host;

  Case(json j, json p) : job(job::parse_job(std::move(j), std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth")), plan(job::parse_plan(std::move(p))), model(model::load_model(job.model_path())) {
    host.ram_gib = 2000;
  }
  Request request(const job::Job& j, const job::Plan& p) const { return {j, p, model, hardware::find_device(plan.gpu, ""), &host}; }
  std::vector<Advice> advice(const StepSeconds& seconds = {}, std::size_t most = 6) const { return advise(request(job, plan), seconds, most); }
};

json job_of(const char* framework, const char* model = "configs/meta-llama__Meta-Llama-3-8B.json") {
  return {{"model", model}, {"method", "full"}, {"sequence_length", 8192}, {"precision", "bf16-mixed"}, {"framework", {{"name", framework}}}};
}
json plan_of(const char* gpu, int gpus, int stage, int micro, int accumulation) {
  return {{"gpu", gpu}, {"gpus_per_node", gpus}, {"micro_batch", micro}, {"gradient_accumulation", accumulation},
          {"sharding", {{"stage", stage}, {"shard_degree", stage == 0 ? 1 : gpus}, {"replicate_degree", stage == 0 ? gpus : 1}}}};
}

// Whatever is advised holds: estimated anew, it frees what it says, fits where it says so, and trains the same global batch.
void check(const Case& c, const std::vector<Advice>& all) {
  const Result now = estimate_memory(c.request(c.job, c.plan));
  for (const Advice& a : all) {
    SCOPED_TRACE(to_words(a));
    const Result then = estimate_memory(c.request(a.job, a.plan));
    EXPECT_EQ(then.memory.device_peak_high, a.device_peak_high);
    EXPECT_EQ(now.memory.device_peak_high - then.memory.device_peak_high, a.frees);
    EXPECT_EQ(then.fits == "yes", a.makes_it_fit);
    EXPECT_TRUE(a.frees > 0 || a.frees_host > 0);
    EXPECT_FALSE(a.changes.empty());
    if (to_words(a).find("larger a global batch") == std::string::npos) {
      EXPECT_EQ(a.plan.micro_batch * a.plan.gradient_accumulation * a.plan.data_parallel(), c.plan.micro_batch * c.plan.gradient_accumulation * c.plan.data_parallel());
    }
    EXPECT_EQ(a.gpus, a.plan.gpus());
  }
}

TEST(Advice, AJobThatFitsNeedsNone) {
  const Case c(job_of("fsdp2"), plan_of("h200_sxm_141gb", 8, 3, 1, 1));
  EXPECT_TRUE(c.advice().empty());
}

TEST(Advice, NamesTheSettingsThatMakeItFit) {
  const Case c(job_of("fsdp2"), plan_of("h100_sxm_80gb", 8, 3, 4, 2));
  const auto all = c.advice();
  ASSERT_FALSE(all.empty());
  check(c, all);
  EXPECT_TRUE(all.front().makes_it_fit);
  EXPECT_THAT(to_words(all.front()), testing::HasSubstr("frees"));
  bool checkpointing = false;
  for (const Advice& a : all)
    for (const Change& change : a.changes) checkpointing |= change.key == "/plan/activation_checkpointing";
  EXPECT_TRUE(checkpointing);
}

TEST(Advice, IsOrderedByWhatItCosts) {
  const Case c(job_of("fsdp2"), plan_of("h100_sxm_80gb", 8, 3, 4, 2));
  // A made-up machine on which recomputation costs a third and everything else nothing.
  const auto all = c.advice([](const job::Job&, const job::Plan& p) -> std::optional<double> { return p.checkpointing.kind == "full" ? 4.0 : 3.0; }, 20);
  ASSERT_GE(all.size(), 2u);
  check(c, all);
  double last = -1;
  for (const Advice& a : all) {
    ASSERT_TRUE(a.slower.has_value());
    const double ranks = static_cast<double>(a.gpus) / 8;
    EXPECT_NEAR(*a.slower, (a.plan.checkpointing.kind == "full" ? 4.0 / 3 : 1.0) * ranks - 1, 1e-9);
    if (a.gpus == 8) {
      EXPECT_GE(*a.slower, last);
      last = *a.slower;
    }
  }
}

TEST(Advice, AStatedGlobalBatchIsNeverChanged) {
  json job = job_of("fsdp2", "configs/mistralai__Mixtral-8x7B-v0.1.json");
  job["global_batch_sequences"] = 8;
  const Case c(job, plan_of("h100_sxm_80gb", 8, 3, 1, 1));
  for (const Advice& a : c.advice({}, 50)) EXPECT_EQ(a.plan.micro_batch * a.plan.gradient_accumulation * a.plan.data_parallel(), 8) << to_words(a);
}

TEST(Advice, ZeroGoesUpAStageOrToTheHost) {
  const Case c(job_of("deepspeed", "configs/meta-llama__Llama-2-13b-chat-hf.json"), plan_of("a100_sxm_40gb", 8, 1, 1, 8));
  const auto all = c.advice();
  ASSERT_FALSE(all.empty());
  check(c, all);
  EXPECT_TRUE(all.front().makes_it_fit);
  bool stage_or_offload = false;
  for (const Advice& a : all)
    for (const Change& change : a.changes) stage_or_offload |= change.key == "/plan/sharding/stage" || change.key.starts_with("/plan/offload");
  EXPECT_TRUE(stage_or_offload);
}

TEST(Advice, WhereOneSettingIsNotEnoughSeveralAreCombined) {
  const Case c(job_of("deepspeed", "configs/meta-llama__Llama-2-70b-hf.json"), plan_of("a100_sxm_80gb", 8, 3, 2, 4));
  const auto all = c.advice();
  ASSERT_FALSE(all.empty());
  check(c, all);
  EXPECT_TRUE(all.front().makes_it_fit);
  EXPECT_GE(all.front().changes.size(), 2u);
}

TEST(Advice, WhereNothingSufficesItSaysSo) {
  const Case c(job_of("ddp", "configs/meta-llama__Meta-Llama-3.1-405B.json"), plan_of("rtx_4090_24gb", 1, 0, 1, 1));
  const auto all = c.advice();
  check(c, all);
  for (const Advice& a : all) {
    EXPECT_FALSE(a.makes_it_fit);
    EXPECT_THAT(to_words(a), testing::HasSubstr("not enough"));
  }
}

TEST(Advice, UnknownHostMemoryIsNamedAsTheCondition) {
  Case c(job_of("deepspeed", "configs/meta-llama__Llama-2-70b-hf.json"), plan_of("a100_sxm_80gb", 8, 3, 1, 1));
  c.host.ram_gib.reset();
  bool named = false;
  for (const Advice& a : c.advice({}, 50))
    if (a.makes_it_fit && a.plan.offload.any()) {
      named = true;
      EXPECT_THAT(a.condition, testing::HasSubstr("GiB of host memory a node"));
    }
  EXPECT_TRUE(named);
}

TEST(Advice, OfOurRuntimeOnlyWhatItRuns) {
  json plan = plan_of("cpu", 2, 0, 8, 1);
  plan["device_memory_gib"] = 3.0;
  json job = job_of("shardfit", "configs/openai-community__gpt2.json");
  job["sequence_length"] = 512;
  job["precision"] = "fp32";
  const Case c(job, plan);
  const auto all = c.advice();
  ASSERT_FALSE(all.empty());
  for (const Advice& a : all) EXPECT_EQ(schedule::why_unsupported(a.job, a.plan, &c.model), std::nullopt) << to_words(a);
}

// What an expert would say first. Times as a rule of thumb: recomputation a third, host updates as much again, more GPUs as they are.
std::optional<double> thumb(const job::Job&, const job::Plan& p) {
  double s = 1;
  if (p.checkpointing.kind == "full") s += p.checkpointing.every > 1 ? 0.17 : 0.33;
  if (p.checkpointing.kind == "selective_op") s += 0.08;
  if (p.offload.optimizer != job::Place::kNone) s += 1.0 * p.offload.optimizer_fraction;
  if (p.offload.parameters != job::Place::kNone) s += 0.5;
  if (p.offload.activations != job::Place::kNone) s += 0.2;
  return s * static_cast<double>(p.micro_batch * p.gradient_accumulation);
}

std::vector<std::string> keys(const Advice& a) {
  std::vector<std::string> out;
  for (const Change& c : a.changes) out.push_back(c.key);
  return out;
}

TEST(Advice, HugeBucketsAreMadeSmallerFirst) {
  json plan = plan_of("t4_16gb", 4, 2, 1, 8);
  plan["activation_checkpointing"] = "full";
  plan["deepspeed"] = {{"zero_optimization", {{"stage", 2}, {"reduce_bucket_size", 2000000000}, {"allgather_bucket_size", 2000000000}, {"overlap_comm", true}}}};
  json job = job_of("deepspeed", "configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json");
  job["sequence_length"] = 2048;
  const Case c(job, plan);
  const auto all = c.advice(thumb);
  ASSERT_FALSE(all.empty());
  check(c, all);
  ASSERT_TRUE(all.front().makes_it_fit);
  EXPECT_THAT(all.front().changes.front().key, testing::EndsWith("bucket_size")) << to_words(all.front());
}

TEST(Advice, AccumulationSynchronisesFirst) {
  json plan = plan_of("a100_sxm_40gb", 8, 3, 1, 8);
  plan["activation_checkpointing"] = "full";
  plan["accumulate_without_sync"] = true;
  json job = job_of("fsdp2");
  job["sequence_length"] = 4096;
  const Case c(job, plan);
  const auto all = c.advice(thumb);
  ASSERT_FALSE(all.empty());
  check(c, all);
  ASSERT_TRUE(all.front().makes_it_fit);
  EXPECT_THAT(keys(all.front()), testing::Contains("/plan/accumulate_without_sync")) << to_words(all.front());
}

TEST(Advice, WhereTheHeadDecidesTheLossComesFirst) {
  json plan = plan_of("rtx_4090_24gb", 1, 0, 2, 8);
  plan["activation_checkpointing"] = "full";
  json job = job_of("ddp", "configs/Qwen__Qwen3-0.6B.json");
  job["framework"]["trainer"] = "transformers";
  job["framework"]["trainer_version"] = "4.52.0";
  const Case c(job, plan);
  const auto all = c.advice(thumb);
  ASSERT_FALSE(all.empty());
  check(c, all);
  ASSERT_TRUE(all.front().makes_it_fit);
  EXPECT_THAT(keys(all.front()), testing::AnyOf(testing::Contains("/job/loss"), testing::Contains("/plan/micro_batch"))) << to_words(all.front());
  bool loss = false;
  for (const Advice& a : all) loss |= a.makes_it_fit && keys(a) == std::vector<std::string>{"/job/loss"};
  EXPECT_TRUE(loss);
}

TEST(Advice, RecomputationComesBeforeTheHost) {
  const Case c(job_of("deepspeed", "configs/meta-llama__Llama-2-13b-chat-hf.json"), plan_of("a100_sxm_80gb", 8, 3, 4, 4));
  const auto all = c.advice(thumb);
  ASSERT_FALSE(all.empty());
  check(c, all);
  ASSERT_TRUE(all.front().makes_it_fit);
  EXPECT_EQ(all.front().plan.offload.optimizer, job::Place::kNone) << to_words(all.front());
  EXPECT_EQ(all.front().gpus, 8);
}

TEST(Advice, ReplicasAreShardedByFsdp) {
  json plan = plan_of("a100_sxm_80gb", 8, 0, 1, 8);
  json job = job_of("ddp", "configs/meta-llama__Llama-2-7b-hf.json");
  job["sequence_length"] = 2048;
  const Case c(job, plan);
  bool sharded = false;
  for (const Advice& a : c.advice(thumb)) sharded |= a.makes_it_fit && a.job.framework.name == "fsdp2" && a.plan.sharding.shard_degree == 8;
  EXPECT_TRUE(sharded);
}

TEST(Advice, AHostThatIsTooSmallIsRelieved) {
  json plan = plan_of("a100_sxm_80gb", 8, 3, 1, 8);
  plan["activation_checkpointing"] = "full";
  plan["offload"] = {{"optimizer", "cpu"}, {"parameters", "cpu"}};
  json job = job_of("deepspeed", "configs/meta-llama__Meta-Llama-3-70B.json");
  job["sequence_length"] = 4096;
  Case c(job, plan);
  c.host.ram_gib = 800;
  c.host.nvme = pricing::Nvme{};
  c.host.nvme->capacity_gb = 8000;
  const auto all = c.advice(thumb);
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all.front().makes_it_fit) << to_words(all.front());
  for (const Advice& a : all) EXPECT_LT(a.host, estimate_memory(c.request(c.job, c.plan)).memory.host) << to_words(a);
}

// Training otherwise is told apart, never as advice, with no figure of time beside it.
TEST(Advice, HintsNameOtherTraining) {
  json job = job_of("ddp", "configs/meta-llama__Llama-2-7b-hf.json");
  job["sequence_length"] = 2048;
  job["precision"] = "bf16";
  job["framework"]["trainer"] = "transformers";
  job["framework"]["trainer_version"] = "4.48.0";
  const Case c(job, plan_of("rtx_4090_24gb", 1, 0, 1, 16));
  const auto told = hints(c.request(c.job, c.plan));
  bool adapters = false;
  for (const Advice& a : told) {
    EXPECT_TRUE(a.makes_it_fit);
    EXPECT_FALSE(a.slower.has_value());
    adapters |= a.job.method.kind == job::MethodKind::kLora || a.job.method.kind == job::MethodKind::kQlora;
    EXPECT_EQ(estimate_memory(c.request(a.job, a.plan)).fits, "yes") << to_words(a);
  }
  EXPECT_TRUE(adapters);
}

}  // namespace
}  // namespace shardfit::memory
