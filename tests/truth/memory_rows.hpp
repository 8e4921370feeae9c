// The table of published memory measurements: cases read, estimated, and scored as score_memory.py does.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "selector/memory/memory.hpp"

namespace shardfit::truth {

struct Case {
  nlohmann::json line;              // as in memory_visible.jsonl
  std::string id;
};
std::vector<Case> read_cases(const std::string& file);

// The estimate as `shardfit estimate --in` prints it (the members that memory fills), or {"id", "error"}.
nlohmann::ordered_json estimate_case(const Case& c, const std::string& folder);

}  // namespace shardfit::truth
