// What a Slurm cluster has and who may use it: a plain value that plugin/inventory fills (or `--inventory FILE.json`).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shardfit::pricing {

struct Gres {
  std::string type;  // Slurm's GPU type, "h100"; "" where gres.conf names none
  std::int64_t count = 0;
};

struct Node {
  std::string name;
  std::vector<Gres> gpus;            // more than one entry: mixed types inside a node
  std::int64_t cpus = 0, cores = 0;  // threads and cores Slurm schedules; cores 0 = not known, taken as cpus
  std::int64_t memory_mib = 0;       // RealMemory
  std::vector<std::string> features;
  std::string state;  // "" = can run jobs; else "drained", "down", "reserved", "future", ...
  std::string reason;
};

struct Partition {
  std::string name;
  bool is_default = false, up = true;
  std::vector<std::string> nodes;     // names, in Inventory::nodes
  std::optional<double> max_seconds;  // MaxTime; absent = unlimited
  std::optional<std::int64_t> max_nodes;
  std::vector<std::string> allow_accounts, deny_accounts, allow_qos, deny_qos, allow_groups;  // empty = no such limit
};

struct Inventory {
  std::string cluster, as_of;  // as_of: RFC 3339
  std::vector<Node> nodes;
  std::vector<Partition> partitions;
};

// Who would submit. An empty member is "not known": limits on it are then taken as met and named in the offer's note.
struct UserContext {
  std::string user, account, qos;
  std::vector<std::string> groups;
};

Inventory parse_inventory(const nlohmann::json& object, const std::string& where = "");
Inventory read_inventory(const std::string& file);
nlohmann::ordered_json to_json(const Inventory& inventory);

}  // namespace shardfit::pricing
