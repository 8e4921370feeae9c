// shardfit-train --probe rates, as shardfit calibrate runs it: the record is whole, and the rates explain whole steps
// of the engine.
#include <gmock/gmock.h>

#include "regions/base/error.hpp"
#include "selector/calibrate/calibration.hpp"

namespace shardfit::calibrate {
namespace {

const std::string kProgram = SHARDFIT_BIN_DIR "/shardfit-train";

TEST(ProbeRates, TwoRanks) {
  const BusyRates rates = run_probe(
      {.ranks = 2, .threads = 1, .type = "fp32", .quick = true, .deadline_seconds = 850, .program = kProgram});
  EXPECT_EQ(rates.ranks, 2);
  EXPECT_EQ(rates.threads, 1);
  EXPECT_GE(rates.gemms.size(), 10u);
  EXPECT_GE(rates.attention.size(), 3u);
  EXPECT_GE(rates.all_gather.size(), 4u);
  EXPECT_EQ(rates.steps.size(), 2u);
  for (const timing::KernelRate& rate :
       {rates.rms_norm, rates.layer_norm, rates.gated, rates.activation, rates.embedding}) {
    EXPECT_GT(rate.forward, 0);
    EXPECT_GT(rate.backward, 0);
  }
  EXPECT_GT(rates.adamw, 0);
  EXPECT_GT(rates.norm, 0);
  // Clamped at 0.5 and 2: a factor inside says that the single rates and the engine tell the same story.
  EXPECT_GT(rates.compute_factor, 0.6);
  EXPECT_LT(rates.compute_factor, 1.6);
}

TEST(ProbeRates, BadOptionsAreRefused) {
  EXPECT_THROW(run_probe({.ranks = 1, .threads = 1, .type = "fp64", .deadline_seconds = 60, .program = kProgram}),
               Error);
}

}  // namespace
}  // namespace shardfit::calibrate
