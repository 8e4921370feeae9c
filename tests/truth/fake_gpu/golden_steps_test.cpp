// Peaks of whole training steps as PyTorch itself told them on the pretended GPU (README.md here), against the estimate. Every *.jsonl of
// this folder is read; limits.json holds what is allowed for each: median, 90th percentile and largest |error| in percent of
// allocated and reserved bytes. Limits are what was reached, with a little room.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "regions/base/files.hpp"
#include "tests/truth/memory_rows.hpp"

namespace {

const std::string kFolder = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth/fake_gpu";

struct Errors {
  std::vector<double> percent;
  std::string worst;

  void add(double estimate, double measured, const std::string& id) {
    const double e = std::fabs(estimate / measured - 1) * 100;
    if (percent.empty() || e > *std::max_element(percent.begin(), percent.end())) worst = id;
    percent.push_back(e);
  }
  double quantile(double q) const {
    auto x = percent;
    std::sort(x.begin(), x.end());
    return x[static_cast<std::size_t>(q * static_cast<double>(x.size() - 1))];
  }
};

void check(const Errors& errors, const nlohmann::json& limits, const std::string& what) {
  if (errors.percent.empty()) return;
  EXPECT_LE(errors.quantile(0.5), limits[0].get<double>()) << what << ": median";
  EXPECT_LE(errors.quantile(0.9), limits[1].get<double>()) << what << ": 90th percentile";
  EXPECT_LE(errors.quantile(1.0), limits[2].get<double>()) << what << ": " << errors.worst;
}

TEST(GoldenSteps, EstimatesMatchTorch) {
  const auto limits = nlohmann::json::parse(shardfit::read_file(kFolder + "/limits.json"));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".jsonl") continue;
    ++files;
    const std::string name = entry.path().filename();
    ASSERT_TRUE(limits.contains(name)) << name << " has no line in limits.json";
    Errors allocated, reserved;
    for (const auto& c : shardfit::truth::read_cases(entry.path())) {
      const auto e = shardfit::truth::estimate_case(c, kFolder);
      ASSERT_FALSE(e.contains("error")) << c.id << ": " << e.dump();
      const auto& m = c.line["measured"];
      if (m.contains("parameters")) {
        EXPECT_EQ(e["parameters"]["total"].get<std::int64_t>(), m["parameters"].get<std::int64_t>()) << c.id;
      }
      if (m.value("kind", "peak") == "oom") {
        EXPECT_NE(e["fits"].get<std::string>(), "yes") << c.id << " ran out of memory";
        continue;
      }
      EXPECT_NE(e["fits"].get<std::string>(), "no") << c.id << " ran";
      allocated.add(e["memory"]["allocated_peak"].get<double>(), m["allocated"].get<double>(), c.id);
      reserved.add(e["memory"]["reserved_peak"].get<double>(), m["reserved"].get<double>(), c.id);
    }
    check(allocated, limits[name]["allocated"], name + " allocated");
    check(reserved, limits[name]["reserved"], name + " reserved");
  }
  EXPECT_GE(files, 2);
}

}  // namespace
