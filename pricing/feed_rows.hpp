// Rows of price feeds as they come, brought into one shape for the validators: SkyPilot catalogues, gpuhunt, and the
// book's own columns, as CSV, a JSON list or JSON lines ({"id","feed","feed_row","peers","now"}).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pricing/price_row.hpp"

namespace shardfit::pricing {

struct FeedRow {
  std::string id, feed;  // "skypilot-aws", "gpuhunt", "snapshot"
  PriceRow row;
  std::string zone, raw;                                   // raw: the cells as they came, for finding repeated rows
  std::optional<double> one_memory_mib, total_memory_mib;  // GPU memory as the feed states it
  bool currency_column = false;                            // the feed says which currency it is in
  std::vector<std::string> unreadable;                     // "Price \"n/a\""
  std::vector<std::string> zeros;                          // fields that are 0: unknown, not nothing
  std::vector<FeedRow> peers;  // other rows of the same file, where the line brings them along
  bool has_peers = false;
  std::optional<std::int64_t> now;
};

// One row of a feed: `cells` is an object of the feed's own columns. Throws Error{unknown_feed} where neither the
// feed's name nor the columns tell the shape.
FeedRow read_feed_row(const std::string& feed, const nlohmann::json& cells, const std::string& where);
// A whole file. `feed` = "": told by the columns, or said by each line. Ids: the line's own, else the number of the
// row.
std::vector<FeedRow> read_feed_file(std::string_view text, const std::string& file, const std::string& feed);

}  // namespace shardfit::pricing
