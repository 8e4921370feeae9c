#include "selector/search/adapter_targets.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"
#include "selector/model/model.hpp"

namespace shardfit::search {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

model::Model model_of(const char* name) {
  return model::load_model(std::string(SHARDFIT_SOURCE_DIR "/tests/truth/configs/") + name + ".json");
}

job::Job job_with(Json method) {
  return job::parse_job(Json{{"model", "m"}, {"sequence_length", 128}, {"method", std::move(method)}}, "");
}

TEST(AdapterTargets, UnstatedOnesAreThoseThatPeftTakes) {
  auto job = job_with({{"kind", "lora"}, {"rank", 8}});
  EXPECT_THAT(settle_targets(job, model_of("meta-llama__Llama-2-7b-hf"), "").value_or(""),
              HasSubstr("method.targets=q_proj,v_proj"));
  EXPECT_THAT(job.method.targets, ElementsAre("q_proj", "v_proj"));
  auto scaled = job_with({{"kind", "ia3"}});
  settle_targets(scaled, model_of("meta-llama__Llama-2-7b-hf"), "");
  EXPECT_THAT(scaled.method.targets, ElementsAre("k_proj", "v_proj", "down_proj"));
  EXPECT_THAT(scaled.method.feedforward, ElementsAre("down_proj"));
}

TEST(AdapterTargets, StatedOnesStayAndFusedPartsCount) {
  auto job = job_with({{"kind", "lora"}, {"rank", 8}, {"targets", {"self_attn.q_proj", "nowhere"}}});
  EXPECT_FALSE(settle_targets(job, model_of("meta-llama__Llama-2-7b-hf"), ""));
  EXPECT_THAT(job.method.targets, ElementsAre("self_attn.q_proj", "nowhere"));
  auto head = job_with({{"kind", "lora"}, {"rank", 8}, {"targets", {"embed_tokens"}}});
  EXPECT_FALSE(settle_targets(head, model_of("meta-llama__Llama-2-7b-hf"), ""));
  auto full = job_with("full");
  EXPECT_FALSE(settle_targets(full, model_of("meta-llama__Llama-2-7b-hf"), ""));
}

TEST(AdapterTargets, NamesThatTheModelDoesNotHaveAreAnErrorOfTheJob) {
  auto job = job_with({{"kind", "lora"}, {"rank", 8}, {"targets", {"q_pro"}}});
  try {
    settle_targets(job, model_of("meta-llama__Llama-2-7b-hf"), "/job");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.where, "/job/method/targets/0");
    EXPECT_THAT(e.message, HasSubstr("\"q_pro\""));
    EXPECT_THAT(e.remedy, HasSubstr("q_proj"));
  }
}

}  // namespace
}  // namespace shardfit::search
