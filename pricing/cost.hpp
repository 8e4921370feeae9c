// Total cost of compute of one run at one offer (docs/prices.md):
//   sum over the fleet of price x (start + run + restarts [+ queue where waiting is billed]) + storage + egress +
//   energy of owned nodes.
// A part whose input is not stated is unknown: null, named in `assumed`, left out of the sum; never silently 0.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pricing/money.hpp"
#include "pricing/offers.hpp"
#include "pricing/rates.hpp"

namespace shardfit::pricing {

struct PriceMaxAge {
  double on_demand_seconds = 7 * 86400.0, spot_seconds = 86400.0;  // site file: price_max_age
};

// What one run needs of an offer.
struct RunNeeds {
  std::int64_t gpus = 1;  // GPUs the plan uses over all nodes; billed in units of min_gpus
  double seconds = 0, seconds_low = 0,
         seconds_high = 0;                      // the run itself, without queue, start and restarts; low/high 0 = same
  std::optional<double> storage_gb, egress_gb;  // as the job states or as counted
  double checkpoint_seconds = 60;               // C: time one checkpoint costs (cost of spot interruptions)
  double restart_seconds = 600;                 // from interruption to training again
};

struct Cost {
  std::optional<Money> amount, low, high;  // nullopt: no price; see `rule`
  std::string currency;
  // In this order: compute, start, queue, storage, egress, energy, restarts. nullopt = unknown.
  std::vector<std::pair<std::string, std::optional<Money>>> parts;
  double seconds = 0, seconds_low = 0, seconds_high = 0;  // queue + start + run + restarts, as the deadline sees it
  double billed_seconds = 0;
  double billed_gpus = 0, billed_nodes = 0;  // after rounding up to units of min_gpus
  std::string rule, reason;                  // why there is no amount: currency_rate_missing | price_missing | stale
  std::vector<std::string> assumed, flags;   // "storage=not stated"; "price stale: 96 days"
  std::string rate_date;                     // "" when no exchange was needed
};

// What can be computed once for an offer: rates applied, freshness judged. cost() is then a few multiplications.
class Pricer {
 public:
  Pricer(const Offer& offer, const Rates& rates, std::string currency, std::int64_t now,
         const PriceMaxAge& max_age = {});

  Cost cost(const RunNeeds& needs) const;
  // The same, only amount, in `currency`; nullopt where cost() would have none. No allocation: for ranking many cells.
  std::optional<double> quick(const RunNeeds& needs) const;
  // Amount as a function of the price alone is a + b x price.amount: for "what would flip it".
  struct Line {
    double at_zero = 0, per_price_unit = 0;
  };
  Line line(const RunNeeds& needs) const;
  bool usable() const { return rule_.empty(); }
  const std::string& rule() const { return rule_; }
  const std::string& reason() const { return reason_; }
  const std::vector<std::string>& flags() const { return flags_; }

 private:
  struct Amounts;
  Amounts amounts(const RunNeeds& needs, double run_seconds) const;
  double restart_overhead(const RunNeeds& needs) const;

  std::string currency_, rule_, reason_, rate_date_;
  std::vector<std::string> assumed_, flags_;
  double gpus_per_node_ = 1, min_gpus_ = 1;
  double rate_ = 1;   // offer's currency -> currency_
  double price_ = 0;  // price.amount, offer's currency
  bool per_node_ = true, has_price_ = false, spot_ = false, queue_billed_ = true;
  std::optional<double> start_seconds_, queue_seconds_, mtti_seconds_, storage_per_gb_month_, egress_per_gb_,
      energy_per_node_hour_;
  bool owned_ = false;
  double increment_ = 1, price_spread_ = 0;
};

Cost total_cost(const Offer& offer, const RunNeeds& needs, const Rates& rates, const std::string& currency,
                std::int64_t now, const PriceMaxAge& max_age = {});
nlohmann::ordered_json to_json(const Cost& cost);  // formats.md 4 "cost": amount, low, high, currency, parts

}  // namespace shardfit::pricing
