// An offer: one place where a job could run (docs/formats.md, "Offers"). Built from inventory x price book x region, or
// read from a file. Absent = unknown: its cost part is then null and named under `assumed`, never silently 0.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shardfit::pricing {

struct Nvme {
  std::optional<double> drives, capacity_gb, read_gbs, write_gbs;  // GB/s of the node
};

struct Host {
  std::optional<double> vcpus, ram_gib, ddr_gbs, pcie_gbs, optimizer_gparams_per_s, cores_per_gpu;
  std::optional<bool> core_binding;
  std::optional<Nvme> nvme;
};

struct Interconnect {
  std::optional<double> gpu_link_gbs, node_gbs;  // one way, GB/s: per GPU inside the node; per node over all NICs
};

struct Price {
  double amount = 0;
  std::string currency;            // ISO 4217
  std::string per = "node_hour";   // node_hour | gpu_hour
  std::string kind = "on_demand";  // on_demand | spot | reserved
  std::string as_of, source;
  std::vector<std::string> flags;  // marks of the validators: "stale", "region_spread", ...
};

struct UnitPrice {
  double amount = 0;
  std::string currency, per;  // GB | GB_month | kWh | node_hour
};

struct Energy {
  std::optional<double> node_watts, pue;
  std::optional<UnitPrice> tariff, depreciation;
};

struct Offer {
  std::string id, provider, region, cluster, partition, gpu;
  std::int64_t gpus_per_node = 1, max_nodes = 1, min_gpus = 1;
  std::optional<double> device_memory_gib;  // gpu "cpu" only
  Host host;
  Interconnect interconnect;
  std::optional<Price> price;
  std::optional<double> billing_increment_seconds, start_seconds, queue_seconds, mtti_hours;
  std::optional<UnitPrice> egress, storage;
  std::optional<Energy> energy;
  std::vector<nlohmann::json> plans;  // restricts the search to these settings
  std::vector<std::string> features;  // Slurm node features that select exactly these nodes
  std::optional<double> max_seconds;  // the partition's MaxTime
  std::string unavailable;            // why nobody can submit there now ("" = can)
  bool from_slurm = false;            // built from inventory: then only offers with a partition can be chosen
};

Host parse_host(const nlohmann::json& object, const std::string& where);
Interconnect parse_interconnect(const nlohmann::json& object, const std::string& where);
Offer parse_offer(const nlohmann::json& object, const std::string& where);
std::vector<Offer> read_offers(const std::string& file);  // a list, or an object with "offers"
nlohmann::ordered_json to_json(const Offer& offer);

}  // namespace shardfit::pricing
