// Every published measurement against the model, with bounds that a change may only tighten.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "rows.hpp"

namespace shardfit::timing {
namespace {

struct Answer {
  Row row;
  Result result;
  double error = 0;  // predicted over measured tokens per second, minus 1
};

const std::vector<Answer>& answers() {
  static const std::vector<Answer> all = [] {
    std::vector<Answer> list;
    std::map<std::string, model::Model> models;
    const std::string folder = SHARDFIT_SOURCE_DIR "/tests/truth";
    for (const Json& line : read_lines(folder + "/time_visible.jsonl")) {
      Answer a;
      a.row = read_row(line, folder);
      const std::string path = a.row.job.model_path();
      if (!models.contains(path)) models.emplace(path, model::load_model(path));
      a.result = answer(a.row, models.at(path));
      a.error = a.result.time.tokens_per_second_per_gpu / a.row.measured_rate - 1;
      list.push_back(std::move(a));
    }
    return list;
  }();
  return all;
}

// As tests/truth/score_time.py: linear between ranks.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double x = q * static_cast<double>(values.size() - 1);
  const auto i = static_cast<std::size_t>(x);
  return i + 1 >= values.size() ? values.back()
                                : values[i] + (x - static_cast<double>(i)) * (values[i + 1] - values[i]);
}

template <typename Keep>
std::vector<double> errors(Keep keep) {
  std::vector<double> list;
  for (const Answer& a : answers())
    if (!a.row.doubtful && keep(a.row)) list.push_back(std::abs(a.error));
  return list;
}

// The score on the day the model was made, and half a point of room.
TEST(TimeTable, QualityAWithoutOffload) {
  const auto list = errors([](const Row& r) { return r.quality == "A" && !r.plan.offload.any(); });
  ASSERT_EQ(list.size(), 192u);
  EXPECT_LE(quantile(list, 0.5), 0.028);
  EXPECT_LE(quantile(list, 0.9), 0.088);
}

TEST(TimeTable, WithOffload) {
  const auto list = errors([](const Row& r) { return r.plan.offload.any(); });
  ASSERT_EQ(list.size(), 58u);
  EXPECT_LE(quantile(list, 0.5), 0.039);
  EXPECT_LE(quantile(list, 0.9), 0.126);
}

TEST(TimeTable, EveryRow) {
  const auto list = errors([](const Row&) { return true; });
  ASSERT_EQ(list.size(), 298u);
  EXPECT_LE(quantile(list, 0.5), 0.031);
  EXPECT_LE(quantile(list, 0.9), 0.111);
}

TEST(TimeTable, RangesHoldTheMeasurement) {
  double inside = 0, count = 0;
  for (const Answer& a : answers()) {
    if (a.row.doubtful) continue;
    ++count;
    inside += a.result.time.step_low <= a.row.measured_step && a.row.measured_step <= a.result.time.step_high;
  }
  EXPECT_GE(inside / count, 0.95);
}

TEST(TimeTable, PartsSumToTheStep) {
  for (const Answer& a : answers()) {
    const TimeEstimate& t = a.result.time;
    double sum = 0;
    for (const auto& [name, seconds] : t.parts) {
      EXPECT_GE(seconds, 0) << a.row.id << " " << name;
      sum += seconds;
    }
    EXPECT_NEAR(sum, t.step, 1e-9 * t.step) << a.row.id;
    EXPECT_LT(t.step_low, t.step) << a.row.id;
    EXPECT_GT(t.step_high, t.step) << a.row.id;
    EXPECT_TRUE(t.parts.contains(t.bound_by) || t.parts.contains(t.bound_by + "_exposed"))
        << a.row.id << " " << t.bound_by;
    EXPECT_EQ(a.result.basis, "table");
  }
}

// Pairs of the table that differ in one factor: the predicted ratio is what a decision rests on.
TEST(TimeTable, Ratios) {
  const auto rate = [](const std::string& id, bool measured) {
    for (const Answer& a : answers())
      if (a.row.id == id) return measured ? a.row.measured_rate : a.result.time.tokens_per_second_per_gpu;
    ADD_FAILURE() << "no row " << id;
    return 1.0;
  };
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"SZH", "SB1H"},     // with and without CPU offload of the optimizer, H200
      {"ZF5", "ZF6"},      // the same on two A100
      {"ZF2", "ZF4"},      // ZeRO-Offload against ZenFlow
      {"LF039", "LF088"},  // MPT-7B, H100 against A100
      {"LF019", "LF070"},  // MPT-70B, the same
      {"MB01", "MB02"},    // bf16 against fp8
      {"TV4", "TV5"},      // checkpointing
      {"FQ14", "FQ15"},    // QLoRA with and without offload of the base
  };
  for (const auto& [a, b] : pairs)
    EXPECT_NEAR(rate(a, false) / rate(b, false) / (rate(a, true) / rate(b, true)), 1, 0.09) << a << " / " << b;
}

}  // namespace
}  // namespace shardfit::timing
