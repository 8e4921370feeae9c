// The visible measurements as a regression test: the score may not get worse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/truth/memory_rows.hpp"

namespace {

using shardfit::truth::Case;

const std::string kFolder = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";
constexpr double kGiB = 1073741824.0;

struct Scored {
  std::string id;
  double error, high, measured;
};

TEST(MemoryTable, EveryRowIsAnswered) {
  int errors = 0, rows = 0;
  std::string which;
  for (const auto& c : shardfit::truth::read_cases(kFolder + "/memory_visible.jsonl")) {
    ++rows;
    const auto e = shardfit::truth::estimate_case(c, kFolder);
    if (e.contains("error")) {
      ++errors;
      which += c.id + ": " + e["error"].dump() + "\n";
    }
  }
  EXPECT_LE(errors, rows * 3 / 100) << which;
}

}  // namespace
