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
    EXPECT_GT(a.frees, 0);
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

}  // namespace
}  // namespace shardfit::memory
