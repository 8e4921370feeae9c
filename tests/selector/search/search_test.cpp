#include "selector/search/search.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/model/model.hpp"
#include "selector/search/bounds.hpp"
#include "selector/search/candidates.hpp"

namespace shardfit::search {
namespace {

using Json = nlohmann::json;

job::Job job_of(const char* framework, const char* model = "meta-llama__Meta-Llama-3-8B") {
  return job::parse_job(Json{{"model", std::string("configs/") + model + ".json"},
                             {"sequence_length", 4096},
                             {"global_batch_sequences", 16},
                             {"duration", {{"tokens", 2e8}}},
                             {"framework", {{"name", framework}}}},
                        SHARDFIT_SOURCE_DIR "/tests/truth");
}

pricing::Offer offer_of(const std::string& id, const char* gpu, int per_node, int nodes, double price, double ram_gib) {
  return pricing::parse_offer(
      Json{{"id", id},
           {"provider", "p"},
           {"region", "p/r"},
           {"gpu", gpu},
           {"gpus_per_node", per_node},
           {"max_nodes", nodes},
           {"host", {{"vcpus", 96}, {"ram_gib", ram_gib}, {"pcie_gbs", 25}}},
           {"interconnect", {{"node_gbs", 100}}},
           {"start_seconds", 300},
           {"price", {{"amount", price}, {"currency", "EUR"}, {"per", "node_hour"}, {"as_of", "2026-08-20"}}}},
      "/offer");
}

// Offers with what a search over them needs.
struct Market {
  std::vector<pricing::Offer> offers;
  std::vector<std::unique_ptr<pricing::Pricer>> pricers;
  std::vector<Choice> choices;

  explicit Market(std::vector<pricing::Offer> list) : offers(std::move(list)) {
    static const auto rates = pricing::Rates::shipped();
    for (size_t i = 0; i < offers.size(); ++i) {
      pricers.push_back(std::make_unique<pricing::Pricer>(offers[i], rates, "EUR", 1787356800 /* 2026-08-22 */));
      choices.push_back({.index = i,
                         .offer = &offers[i],
                         .device = &hardware::find_device(offers[i].gpu, ""),
                         .pricer = pricers.back().get()});
    }
  }
};

Market small_market() {
  return Market({offer_of("h100", "h100_sxm_80gb", 8, 1, 18.3, 1480),
                 offer_of("a100-40", "a100_sxm_40gb", 4, 1, 4.4, 960), offer_of("l4", "l4_24gb", 8, 2, 3.2, 512)});
}

void expect_same(const std::optional<Found>& a, const std::optional<Found>& b, const std::string& what) {
  ASSERT_EQ(a.has_value(), b.has_value()) << what;
  if (!a) return;
  EXPECT_DOUBLE_EQ(a->cost, b->cost) << what;
  EXPECT_EQ(job::plan_sha256(a->plan), job::plan_sha256(b->plan)) << what;
}

TEST(Search, PrunedAnswersAsExhaustive) {
  for (const char* framework : {"shardfit", "fsdp2", "fsdp1", "deepspeed", "megatron", "ddp"}) {
    // The smaller model keeps the exhaustive side short; it fills the small cards all the same.
    const auto job = job_of(framework, framework == std::string("fsdp2") || framework == std::string("deepspeed")
                                           ? "meta-llama__Meta-Llama-3-8B"
                                           : "meta-llama__Llama-3.2-1B");
    const auto model = model::load_model(job.model_path());
    const auto duration = duration_of(job);
    const auto market = small_market();
    for (const double deadline : {1e18, 3600.0}) {
      if (deadline < 1e18 && job.framework.name != "fsdp2") continue;
      Limits limits;
      limits.deadline_seconds = deadline;
      const auto pruned = search(job, model, duration, market.choices, limits);
      limits.exhaustive = true;
      const auto all = search(job, model, duration, market.choices, limits);
      EXPECT_LT(pruned.replays, all.replays);
      for (size_t i = 0; i < market.choices.size(); ++i) {
        const std::string what = std::string(framework) + " on " + market.offers[i].id;
        expect_same(pruned.offers[i].best, all.offers[i].best, what);
        expect_same(pruned.offers[i].cheapest, all.offers[i].cheapest, what);
        expect_same(pruned.offers[i].fastest, all.offers[i].fastest, what);
        if (all.offers[i].cheapest) continue;
        expect_same(pruned.offers[i].unsure, all.offers[i].unsure, what);
        expect_same(pruned.offers[i].least_memory, all.offers[i].least_memory, what);
      }
      ASSERT_EQ(pruned.front.size(), all.front.size()) << framework;
      for (size_t i = 0; i < all.front.size(); ++i)
        EXPECT_DOUBLE_EQ(pruned.front[i].cost, all.front[i].cost) << framework;
    }
  }
}

TEST(Search, FloorNeverExceedsTheReplayedPeak) {
  for (const char* framework : {"shardfit", "fsdp2", "deepspeed", "megatron"}) {
    const auto job = job_of(framework);
    const auto model = model::load_model(job.model_path());
    const auto sizes = sizes_of(job, model);
    const auto& device = hardware::find_device("h100_sxm_80gb", "");
    auto plans = plans_for(job, model, {"h100_sxm_80gb", 1, 8});
    for (auto& plan : plans_for(job, model, {"h100_sxm_80gb", 1, 1})) plans.push_back(std::move(plan));
    for (const auto& plan : plans) {
      try {
        const auto memory = memory::estimate_memory({.job = job, .plan = plan, .model = model, .device = device});
        EXPECT_LE(memory_floor(sizes, plan), static_cast<double>(memory.memory.allocated_peak))
            << framework << " " << to_json(plan).dump();
      } catch (const Error&) {  // a combination that the framework refuses
      }
    }
  }
}

TEST(Search, EveryCandidateAgreesWithTheJobAndTheRuntime) {
  for (const char* framework : {"shardfit", "fsdp2", "fsdp1", "deepspeed", "megatron", "ddp", "other"}) {
    const auto job = job_of(framework);
    const auto model = model::load_model(job.model_path());
    const auto plans = plans_for(job, model, {"h100_sxm_80gb", 2, 8});
    EXPECT_FALSE(plans.empty()) << framework;
    for (const auto& plan : plans) {
      EXPECT_NO_THROW(job::check_plan_against_job(job, plan));
      const auto read_back = job::parse_plan(Json::parse(to_json(plan).dump()));
      EXPECT_EQ(job::plan_sha256(read_back), job::plan_sha256(plan));
      EXPECT_FALSE(runtime_refuses(job, plan, &model));
    }
  }
}

TEST(Search, ExpertsAreSplitForMegatron) {
  const auto job = job_of("megatron", "mistralai__Mixtral-8x7B-v0.1");
  const auto model = model::load_model(job.model_path());
  std::int64_t most = 1;
  for (const auto& plan : plans_for(job, model, {"h100_sxm_80gb", 1, 8})) most = std::max(most, plan.expert_parallel);
  EXPECT_EQ(most, 8);
}

TEST(Search, SizesAreWhatTheOfferSells) {
  auto offer = offer_of("x", "h100_sxm_80gb", 8, 4, 18, 1480);
  EXPECT_EQ(sizes_of(offer, {}), (std::vector<std::pair<std::int64_t, std::int64_t>>{
                                     {1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 8}, {3, 8}, {4, 8}}));
  offer.min_gpus = 8;
  EXPECT_EQ(sizes_of(offer, 2), (std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 8}, {2, 8}}));
  offer.min_gpus = 32;
  EXPECT_EQ(sizes_of(offer, {}), (std::vector<std::pair<std::int64_t, std::int64_t>>{{4, 8}}));
}

TEST(Search, ListedPlansRestrictTheSearch) {
  const auto job = job_of("fsdp2");
  const auto model = model::load_model(job.model_path());
  auto offer = offer_of("x", "h100_sxm_80gb", 8, 1, 18, 1480);
  offer.plans = {Json::parse(
      R"({"gpu":"h100_sxm_80gb","gpus_per_node":8,"sharding":{"stage":3},"micro_batch":1,"gradient_accumulation":2,"activation_checkpointing":"full"})")};
  const Market market({offer});
  const auto outcome = search(job, model, duration_of(job), market.choices, {});
  ASSERT_TRUE(outcome.offers[0].best);
  EXPECT_EQ(outcome.cells, 1u);
  EXPECT_EQ(outcome.offers[0].best->plan.checkpointing.kind, "full");
  auto wrong = offer;
  wrong.plans = {Json::parse(
      R"({"gpu":"h100_sxm_80gb","gpus_per_node":8,"sharding":{"stage":3},"micro_batch":2,"gradient_accumulation":2})")};
  const Market other({wrong});
  EXPECT_THROW(search(job, model, duration_of(job), other.choices, {}), Error);
}

TEST(Duration, StepsFollowFromTokensStepsOrEpochs) {
  auto job = job_of("fsdp2");
  EXPECT_EQ(duration_of(job).steps_for(16, 4096), 3052);  // ceil(2e8 / 65536)
  job.duration_tokens.reset();
  job.duration_steps = 7;
  EXPECT_EQ(duration_of(job).steps_for(16, 4096), 7);
  job.duration_steps.reset();
  job.duration_epochs = 2;
  job.data = job::Data{.tokens = 65536 * 5};
  EXPECT_EQ(duration_of(job).steps_for(16, 4096), 10);
  job.data->tokens.reset();
  job.data->train = {"no/such/file"};
  EXPECT_THROW(duration_of(job), Error);
}

}  // namespace
}  // namespace shardfit::search
