#include "selector/search/probes.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace shardfit::search {
namespace {

Estimated estimated() {
  Estimated e;
  e.estimate.time = TimeEstimate{.step = 10,
                                 .step_low = 7,
                                 .step_high = 14,
                                 .tokens_per_second_per_gpu = 1000,
                                 .bound_by = "compute",
                                 .parts = {{"compute", 9}, {"input", 1}}};
  auto& m = e.estimate.memory;
  m.allocated_peak = 1000;
  m.reserved_peak = 1200;
  m.device_peak = 1500;
  m.allocated_peak_high = 1060;
  m.device_peak_high = 1360;
  m.terms = {{"activations", 1000}, {"CUDA context", 500}};
  e.capacity_bytes = 1400;
  e.estimate.fits = "yes";
  return e;
}

TEST(Probes, OneProbeScales) {
  auto e = estimated();
  rest_on_probes(e, {{.predicted_step = 2, .measured_step = 3}});
  EXPECT_NEAR(e.estimate.time->step, 15, 1e-9);
  EXPECT_NEAR(e.estimate.time->tokens_per_second_per_gpu, 1000 / 1.5, 1e-9);
  EXPECT_NEAR(e.estimate.time->parts["compute"], 13.5, 1e-9);
  EXPECT_LT(e.estimate.time->step_high / e.estimate.time->step, 1.1);
  EXPECT_EQ(e.estimate.basis, "probed");
  EXPECT_EQ(e.estimate.memory.allocated_peak, 1000);  // not measured
}

TEST(Probes, TwoSizesTellTheFixedPart) {
  const auto c = correction_of({{2, 2 * 1.2 + 0.5}, {6, 6 * 1.2 + 0.5}});
  ASSERT_TRUE(c);
  EXPECT_NEAR(c->scale, 1.2, 1e-6);
  EXPECT_NEAR(c->offset, 0.5, 1e-6);
  EXPECT_NEAR(c->apply(20), 24.5, 1e-5);
}

TEST(Probes, AbsurdLinesFallBackToTheRatio) {
  const auto c = correction_of({{1, 5}, {2, 5.1}});  // a slope of 0.1
  ASSERT_TRUE(c);
  EXPECT_EQ(c->offset, 0);
  EXPECT_FALSE(correction_of({}));
}

TEST(Probes, MeasuredPeakMovesTermsBoundAndVerdict) {
  auto e = estimated();
  rest_on_probes(e, {{.predicted_peak = 500, .measured_peak = 600}});
  const auto& m = e.estimate.memory;
  EXPECT_EQ(m.allocated_peak, 1200);
  EXPECT_EQ(m.device_peak, 1700);
  std::int64_t sum = 0;
  for (const auto& t : m.terms) sum += t.bytes;
  EXPECT_EQ(sum, m.device_peak);
  EXPECT_EQ(e.estimate.fits, "no");  // 1200 + 300 outside of the allocator > 1400
}

TEST(Probes, SmallerPeakShrinksTheTerms) {
  auto e = estimated();
  rest_on_probes(e, {{.predicted_peak = 500, .measured_peak = 450}});
  std::int64_t sum = 0;
  for (const auto& t : e.estimate.memory.terms) sum += t.bytes;
  EXPECT_EQ(e.estimate.memory.allocated_peak, 900);
  EXPECT_EQ(sum, e.estimate.memory.device_peak);
}

}  // namespace
}  // namespace shardfit::search
