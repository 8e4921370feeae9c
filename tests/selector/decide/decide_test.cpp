#include "selector/decide/decide.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "selector/decide/confidence.hpp"
#include "selector/decide/table.hpp"
#include "selector/decide/words.hpp"

namespace shardfit::decide {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr std::int64_t kNow = 1787356800;  // 2026-08-22

job::Job job_of(Json changes = Json::object()) {
  Json j = {{"model", "configs/meta-llama__Meta-Llama-3-8B.json"},
            {"sequence_length", 4096},
            {"global_batch_sequences", 64},
            {"duration", {{"tokens", 2e8}}},
            {"framework", {{"name", "fsdp2"}}}};
  j.merge_patch(changes);
  return job::parse_job(j, SHARDFIT_SOURCE_DIR "/tests/truth");
}

pricing::Offer offer_of(const std::string& id, const char* region, const char* gpu, double price,
                        Json changes = Json::object()) {
  Json o = {{"id", id},
            {"provider", "verda"},
            {"region", region},
            {"gpu", gpu},
            {"gpus_per_node", 8},
            {"min_gpus", 8},
            {"host", {{"vcpus", 176}, {"ram_gib", 1480}}},
            {"start_seconds", 300},
            {"price", {{"amount", price}, {"currency", "EUR"}, {"per", "node_hour"}, {"as_of", "2026-08-21"}}}};
  o.merge_patch(changes);
  return pricing::parse_offer(o, "/offer");
}

const Rejection* rejection_of(const Decision& d, const std::string& offer) {
  for (const auto& r : d.rejected)
    if (r.offer == offer) return &r;
  return nullptr;
}

TEST(Decide, CheaperOfTwoEqualMachinesWins) {
  const auto d = decide(
      job_of(),
      {offer_of("dear", "verda/FIN-02", "h100_sxm_80gb", 30), offer_of("cheap", "verda/FIN-03", "h100_sxm_80gb", 20)},
      {}, kNow);
  EXPECT_EQ(d.decision, "chosen");
  EXPECT_EQ(d.chosen->offer, "cheap");
  EXPECT_EQ(d.chosen->estimate->fits, "yes");
  EXPECT_EQ(d.runner_up->offer, "dear");
  EXPECT_GT(*d.confidence, 0.95);  // one GPU, one engine: the errors cancel
  ASSERT_FALSE(d.flips.empty());
  EXPECT_EQ(d.flips[0].what, "price of cheap");
  EXPECT_NEAR(d.flips[0].to, 30, 1e-6);
  EXPECT_EQ(d.flips[0].then, "dear");
}

TEST(Decide, FlipOfTheRunnerUpsPriceReallyFlips) {
  const auto first =
      decide(job_of(),
             {offer_of("a", "verda/FIN-02", "h100_sxm_80gb", 20), offer_of("b", "verda/FIN-03", "a100_sxm_80gb", 12)},
             {}, kNow);
  ASSERT_EQ(first.flips.size(), 3u);
  const auto& flip = first.flips[1];
  const std::string cheaper = first.chosen->offer, other = flip.then;
  const auto with = [&](double price) {
    std::vector<pricing::Offer> offers = {offer_of("a", "verda/FIN-02", "h100_sxm_80gb", other == "a" ? price : 20),
                                          offer_of("b", "verda/FIN-03", "a100_sxm_80gb", other == "b" ? price : 12)};
    return decide(job_of(), offers, {}, kNow).chosen->offer;
  };
  EXPECT_EQ(with(flip.to * 0.99), other);
  EXPECT_EQ(with(flip.to * 1.01), cheaper);
}

TEST(Decide, TieIsCalledATie) {
  const std::vector<pricing::Offer> offers = {offer_of("a", "verda/FIN-02", "h100_sxm_80gb", 20),
                                              offer_of("b", "verda/FIN-03", "h100_sxm_80gb", 20.8)};
  const auto d = decide(job_of(), offers, {}, kNow);
  EXPECT_EQ(d.decision, "tie");
  EXPECT_EQ(d.chosen->offer, "a");
  EXPECT_THAT(d.tied_with, ::testing::ElementsAre("b"));
  Options options;
  options.tie_percent = 1;
  EXPECT_EQ(decide(job_of(), offers, {}, kNow, options).decision, "chosen");
}

TEST(Decide, PinKeepsOutWithItsAtomAndWhatItCosts) {
  Limits limits;
  limits.pins = {"residency(EU)"};
  const auto d = decide(job_of(),
                        {offer_of("finland", "verda/FIN-02", "h100_sxm_80gb", 30),
                         offer_of("zurich", "oci/eu-zurich-1", "h100_sxm_80gb", 10)},
                        limits, kNow);
  EXPECT_EQ(d.chosen->offer, "finland");
  const auto* r = rejection_of(d, "zurich");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->rule, "residency(EU)");
  EXPECT_THAT(r->nearest, HasSubstr("less than the choice"));
}

TEST(Decide, StatedLocationsMustSatisfyThePinsToo) {
  const auto d = decide(job_of({{"pins", {"residency(EU)"}}, {"locations", {{"data", "US"}}}}),
                        {offer_of("finland", "verda/FIN-02", "h100_sxm_80gb", 30)}, {}, kNow);
  EXPECT_EQ(d.decision, "none");
  EXPECT_EQ(rejection_of(d, "finland")->rule, "residency(EU)");
  EXPECT_THAT(rejection_of(d, "finland")->reason, HasSubstr("locations/data"));
}

TEST(Decide, DeadlineAndCostNameTheNearestRelaxation) {
  const std::vector<pricing::Offer> offers = {offer_of("x", "verda/FIN-02", "a100_sxm_80gb", 10)};
  const auto late = decide(job_of({{"deadline", "10m"}}), offers, {}, kNow);
  EXPECT_EQ(late.decision, "none");
  EXPECT_EQ(late.rejected[0].rule, "deadline");
  EXPECT_THAT(late.rejected[0].nearest, HasSubstr("deadline 1 h"));
  const auto dear = decide(job_of({{"max_cost", "1EUR"}}), offers, {}, kNow);
  EXPECT_EQ(dear.rejected[0].rule, "max_cost");
  EXPECT_THAT(dear.rejected[0].nearest, HasSubstr("EUR"));
}

TEST(Decide, MemoryThatDoesNotFitSaysByHowMuch) {
  const auto d =
      decide(job_of({{"framework", {{"name", "ddp"}}}}), {offer_of("x", "verda/FIN-02", "rtx_4090_24gb", 2)}, {}, kNow);
  EXPECT_EQ(d.decision, "none");
  EXPECT_EQ(d.rejected[0].rule, "memory");
  EXPECT_THAT(d.rejected[0].nearest, HasSubstr("too many"));
}

TEST(Decide, UnsureIsChosenOnlyWhenAllowed) {
  // Only offload fits a 24 GB card, and the host's memory is not stated.
  Json unknown_host = {{"host", {{"ram_gib", nullptr}}}, {"gpus_per_node", 1}, {"min_gpus", 1}};
  const std::vector<pricing::Offer> offers = {offer_of("x", "verda/FIN-02", "rtx_4090_24gb", 1, unknown_host)};
  const auto d = decide(job_of(), offers, {}, kNow);
  EXPECT_EQ(d.decision, "none");
  EXPECT_THAT(d.rejected[0].reason, HasSubstr("unsure"));
  Options options;
  options.allow_unsure = true;
  const auto allowed = decide(job_of(), offers, {}, kNow, options);
  ASSERT_TRUE(allowed.chosen);
  EXPECT_THAT(allowed.chosen->flags, ::testing::Contains(HasSubstr("memory unsure")));
}

TEST(Decide, UnknownIsNeverSilentlyZero) {
  const auto no_price =
      decide(job_of(), {offer_of("x", "verda/FIN-02", "h100_sxm_80gb", 1, {{"price", nullptr}})}, {}, kNow);
  EXPECT_EQ(no_price.decision, "none");
  EXPECT_EQ(no_price.rejected[0].rule, "price_missing");
  const auto no_rate = decide(
      job_of(), {offer_of("x", "verda/FIN-02", "h100_sxm_80gb", 1, {{"price", {{"currency", "XAF"}}}})}, {}, kNow);
  EXPECT_EQ(no_rate.rejected[0].rule, "currency_rate_missing");
  const auto unstated = decide(job_of(), {offer_of("x", "verda/FIN-02", "h100_sxm_80gb", 20)}, {}, kNow);
  EXPECT_THAT(unstated.assumed, ::testing::Contains(HasSubstr("egress_gb")));
}

TEST(Decide, OldPriceIsFlaggedAndWidensTheRange) {
  const auto fresh = decide(job_of(), {offer_of("x", "verda/FIN-02", "h100_sxm_80gb", 20)}, {}, kNow);
  const auto old = decide(
      job_of(), {offer_of("x", "verda/FIN-02", "h100_sxm_80gb", 20, {{"price", {{"as_of", "2026-05-18"}}}})}, {}, kNow);
  EXPECT_THAT(old.chosen->flags, ::testing::Contains("price stale: 96 days"));
  EXPECT_GT(old.chosen->cost.high->amount(), fresh.chosen->cost.high->amount());
}

TEST(Decide, PinsAloneRankByThePriceOfAGpuHour) {
  const auto job = job::parse_job(Json{{"pins", {"residency(EU)"}}}, "");
  const auto d =
      decide(job,
             {offer_of("a", "verda/FIN-02", "h100_sxm_80gb", 20), offer_of("b", "verda/FIN-03", "a100_sxm_80gb", 10),
              offer_of("c", "aws/us-east-1", "l4_24gb", 1)},
             {}, kNow);
  EXPECT_EQ(d.chosen->offer, "b");
  EXPECT_FALSE(d.chosen->plan);
  EXPECT_EQ(rejection_of(d, "c")->rule, "residency(EU)");
  EXPECT_TRUE(to_json(d)["chosen"]["cost"]["amount"].is_null());
}

TEST(Decide, OfferThatNoPartitionReachesIsShownNotChosen) {
  auto hidden = offer_of("hidden", "verda/FIN-02", "h100_sxm_80gb", 1);
  hidden.from_slurm = true;
  const auto d = decide(job_of(), {hidden, offer_of("open", "verda/FIN-03", "h100_sxm_80gb", 20)}, {}, kNow);
  EXPECT_EQ(d.chosen->offer, "open");
  EXPECT_EQ(rejection_of(d, "hidden")->rule, "partition");
}

TEST(Decide, CandidatesAreTheFrontThenTheBestOfEachOther) {
  const auto d = decide(
      job_of(),
      {offer_of("cheap", "verda/FIN-02", "a100_sxm_80gb", 5), offer_of("fast", "verda/FIN-03", "h100_sxm_80gb", 40),
       offer_of("worse", "verda/FIN-02", "a100_sxm_80gb", 9)},
      {}, kNow);
  ASSERT_EQ(d.candidates.size(), 3u);
  EXPECT_EQ(d.candidates[0].offer, "cheap");
  EXPECT_EQ(d.candidates[1].offer, "fast");
  EXPECT_EQ(d.candidates[2].offer, "worse");
  EXPECT_LT(d.candidates[1].seconds, d.candidates[0].seconds);
}

TEST(Decide, TablePrintsEveryPart) {
  Limits limits;
  limits.pins = {"residency(EU)"};
  const auto job = job_of();
  const std::string text = table(
      decide(job,
             {offer_of("a", "verda/FIN-02", "h100_sxm_80gb", 20), offer_of("b", "verda/FIN-03", "a100_sxm_80gb", 12),
              offer_of("c", "oci/eu-zurich-1", "h100_sxm_80gb", 80)},
             limits, kNow),
      job);
  for (const char* part : {"Choice: ", "plan ", "memory ", "step ", "cost ", "runner-up", "Candidates", "Rejected",
                           "residency(EU)", "nearest: ", "What would change it", "Assumed"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Confidence, FollowsDistanceAndSharedError) {
  EXPECT_DOUBLE_EQ(confidence(0.1, {}), 1);
  EXPECT_NEAR(confidence(0.1, {{0, 0.1, 0.5}}), 0.5, 1e-6);
  EXPECT_NEAR(confidence(0.1, {{0.1, 0.1, 0}}), 0.7602, 1e-3);  // Phi(0.1 / hypot(0.1, 0.1))
  EXPECT_GT(confidence(0.1, {{0.1, 0.1, 0.9}}), confidence(0.1, {{0.1, 0.1, 0}}));
  EXPECT_LT(confidence(0.1, {{0.1, 0.1, 0}, {0.1, 0.1, 0}}), confidence(0.1, {{0.1, 0.1, 0}}));
  EXPECT_DOUBLE_EQ(confidence(0, {{0.01, 0, 0}}), 1);
}

TEST(Words, MoneyAndShares) {
  EXPECT_EQ(money_words(1234567.8, "EUR"), "1,234,568 EUR");
  EXPECT_EQ(money_words(12.345, "EUR"), "12.35 EUR");
  EXPECT_EQ(money_words(0.00421, "CHF"), "0.0042 CHF");
  EXPECT_EQ(percent_words(0.083), "8.3 %");
}

}  // namespace
}  // namespace shardfit::decide
