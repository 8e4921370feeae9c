// The site file /etc/shardfit/shardfit.conf (docs/formats.md, "Slurm"): where the cluster stands, what its nodes cost,
// who must stay where. SHARDFIT_CONF names another file. Strict: an unknown key is an error.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pricing/cost.hpp"
#include "pricing/offers.hpp"

namespace shardfit::pricing {

// A row of the price book, or an amount stated outright.
struct SitePrice {
  std::string provider, instance;  // as the price book names them; "" when `stated` is set
  std::string kind = "on_demand";  // on_demand | spot | reserved
  std::optional<Price> stated;
};

// What the site says of a partition, or of those of its nodes that have one feature.
struct SiteNodes {
  std::string region, gpu;  // "" = not said
  std::optional<SitePrice> price;
  Host host;
  Interconnect interconnect;
  std::optional<Energy> energy;
  std::optional<std::int64_t> gpus_per_node, min_gpus, max_nodes;  // gpus_per_node of "cpu": ranks a node
  std::optional<double> device_memory_gib;                         // "cpu" only
  std::optional<double> billing_increment_seconds, start_seconds, queue_seconds, mtti_hours;
  std::optional<UnitPrice> egress, storage;
};

struct SitePartition : SiteNodes {
  std::vector<std::pair<std::string, SiteNodes>>
      by_feature;  // in the order of their names; members not said fall back to the partition's
};

struct Policy {  // pins by what a job matches; a job must satisfy the union
  std::vector<std::string> default_pins;
  std::map<std::string, std::vector<std::string>> accounts, users, qos, partitions;
  bool empty() const {
    return default_pins.empty() && accounts.empty() && users.empty() && qos.empty() && partitions.empty();
  }
};

struct Budget {
  double amount = 0;
  std::string currency, per = "month";  // month | year
  double warn = 0.8, refuse = 1.0;      // shares of the amount
};

struct Site {
  std::string file;  // "" = there is none
  std::string cluster, currency = "EUR", state_dir = "/var/lib/shardfit", spool = "/var/spool/shardfit/jobs.ndjson",
                       regions_dir = "/etc/shardfit/regions.d", plan_dir;
  double decide_timeout_seconds = 3;
  PriceMaxAge price_max_age;
  std::map<std::string, SitePartition> partitions;
  std::map<std::string, std::string> gpu_names;  // Slurm's type -> key of the hardware table
  Policy policy;
  std::map<std::string, Budget> account_budgets, user_budgets;
};

// $SHARDFIT_CONF, else /etc/shardfit/shardfit.conf. A file that SHARDFIT_CONF names must be there; the default one need
// not.
std::string site_file();
Site read_site();
Site read_site(const std::string& file);
Site parse_site(const nlohmann::json& object, const std::string& file);

}  // namespace shardfit::pricing
