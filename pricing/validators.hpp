// What is wrong with a price row: the defects real feeds have shown, each a rule with a name (docs/prices.md). A
// rejected row is kept out of decisions; a flagged one is usable with a mark, and the field that lies becomes unknown.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "pricing/cost.hpp"
#include "pricing/feed_rows.hpp"
#include "pricing/gpu_types.hpp"

namespace shardfit::pricing {

struct JudgeOptions {
  const GpuTypes* types = nullptr;  // nullptr: GPU names and memories are not checked
  std::int64_t now = 0;             // used where a row brings no `now`
  PriceMaxAge max_age;
  bool check_age = true;  // false: age is judged later, by whoever uses the row
};

// Judges each row against its peers: those it brings along, else the other rows of its feed in the list. Fills
// row.verdict, row.rules and row.why, and clears the fields that a flag makes unknown.
void judge(std::vector<FeedRow>& rows, const JudgeOptions& options);

// What one GPU costs an hour in USD over the shipped snapshot (rows of quality A and B): median, cheapest, dearest; 0
// where it has no row.
struct UsualPrice {
  double median = 0, low = 0, high = 0;
};
UsualPrice usual_price_per_gpu(const GpuTypes& types, const std::string& key);

}  // namespace shardfit::pricing
