#include "pricing/cost.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

constexpr double kHour = 3600.0;

// How far a price may have moved since it was seen: 5 % once it is past its age limit and 10 % a year, at most 30 %.
double spread_of_age(double seconds) { return std::min(0.30, 0.05 + 0.10 * seconds / (365.25 * 86400.0)); }

}  // namespace

struct Pricer::Amounts {
  double seconds = 0, billed_seconds = 0, gpus = 0, nodes = 0;
  double price_factor = 0;                                        // node hours or GPU hours billed to `compute`
  double start_factor = 0, queue_factor = 0, restart_factor = 0;  // the same for the other parts
  bool start = true, queue = true, restarts = true, energy = true, storage = true, egress = true;
  double energy_amount = 0, storage_amount = 0, egress_amount = 0;
  double priced() const { return price_factor + start_factor + queue_factor + restart_factor; }
};

Pricer::Pricer(const Offer& offer, const Rates& rates, std::string currency, std::int64_t now,
               const PriceMaxAge& max_age)
    : currency_(std::move(currency)) {
  gpus_per_node_ = static_cast<double>(std::max<std::int64_t>(offer.gpus_per_node, 1));
  min_gpus_ = static_cast<double>(std::max<std::int64_t>(offer.min_gpus, 1));
  start_seconds_ = offer.start_seconds;
  queue_seconds_ = offer.queue_seconds;
  if (offer.mtti_hours) mtti_seconds_ = *offer.mtti_hours * kHour;
  // Waiting in a Slurm queue holds no machine; elsewhere queue_seconds is time that the fleet is held and billed before
  // it starts.
  queue_billed_ = offer.partition.empty();
  if (offer.billing_increment_seconds) increment_ = std::max(*offer.billing_increment_seconds, 0.0);
  else assumed_.push_back("billing_increment_seconds=1 (not stated)");

  const auto exchange = [&](const std::string& from) -> std::optional<double> {
    const auto r = rates.rate(from, currency_);
    if (!r && rule_.empty()) {
      rule_ = "currency_rate_missing";
      reason_ = "no exchange rate from " + from + " to " + currency_ + " in the rates of " + rates.date();
    }
    if (r && from != currency_) rate_date_ = rates.date();
    return r;
  };

  if (offer.price) {
    const Price& p = *offer.price;
    has_price_ = true;
    price_ = p.amount;
    per_node_ = p.per != "gpu_hour";
    spot_ = p.kind == "spot";
    rate_ = exchange(p.currency).value_or(0);
    for (const auto& f : p.flags)
      if (f != "stale") flags_.push_back("price " + f);
    if (const auto seen = p.as_of.empty() ? std::nullopt : parse_time(p.as_of)) {
      const double age = static_cast<double>(now - *seen);
      const double limit = spot_ ? max_age.spot_seconds : max_age.on_demand_seconds;
      if (age > limit) {
        const std::string shown = age < 2 * 86400.0 ? fmt::format("{:.0f} hours", age / kHour)
                                                    : fmt::format("{:.0f} days", std::floor(age / 86400.0));
        if (spot_ && rule_.empty()) {
          rule_ = "stale";
          reason_ = "the spot price is " + shown + " old; a spot price is good for " +
                    fmt::format("{:.0f} hours", limit / kHour);
        }
        flags_.push_back("price stale: " + shown);
        price_spread_ = spread_of_age(age);
      }
    } else {
      flags_.push_back("price age unknown");
      price_spread_ = 0.05;
    }
  }

  if (offer.energy) {
    owned_ = true;
    const Energy& e = *offer.energy;
    std::optional<double> per_hour;
    std::vector<std::string> missing;
    if (!e.node_watts) missing.push_back("energy.node_watts");
    if (!e.pue) missing.push_back("energy.pue");
    if (!e.tariff) missing.push_back("energy.tariff");
    if (!e.depreciation && !offer.price) missing.push_back("energy.depreciation");
    if (missing.empty()) {
      const auto tariff = exchange(e.tariff->currency);
      const auto depreciation = e.depreciation ? exchange(e.depreciation->currency) : std::optional<double>(0.0);
      if (tariff && depreciation)
        per_hour = *e.node_watts / 1000.0 * *e.pue * e.tariff->amount * *tariff +
                   (e.depreciation ? e.depreciation->amount * *depreciation : 0.0);
    } else {
      for (const auto& m : missing) assumed_.push_back(m + "=not stated (energy left out of the cost)");
    }
    energy_per_node_hour_ = per_hour;
  }
  if (!has_price_ && !energy_per_node_hour_ && rule_.empty()) {
    rule_ = "price_missing";
    reason_ = owned_ ? "neither a price nor the whole energy section is stated" : "no price is known for this offer";
  }
  if (offer.storage) {
    if (const auto r = exchange(offer.storage->currency)) storage_per_gb_month_ = offer.storage->amount * *r;
  }
  if (offer.egress) {
    if (const auto r = exchange(offer.egress->currency)) egress_per_gb_ = offer.egress->amount * *r;
  }
  if (!start_seconds_) assumed_.push_back("start_seconds=not stated (start left out of the cost)");
  if (!queue_seconds_) assumed_.push_back("queue_seconds=not stated (queue left out of the cost)");
  if (spot_ && !mtti_seconds_) assumed_.push_back("mtti_hours=not stated (restarts left out of the cost)");
}

// Share of run time that interruptions of spot machines add: checkpoints at the best interval, and restarts
// (Young's and Daly's first-order optimum, sqrt(2 C / MTTI) + restart / MTTI).
double Pricer::restart_overhead(const RunNeeds& needs) const {
  if (!spot_ || !mtti_seconds_) return 0;
  return std::sqrt(2 * needs.checkpoint_seconds / *mtti_seconds_) + needs.restart_seconds / *mtti_seconds_;
}

Pricer::Amounts Pricer::amounts(const RunNeeds& needs, double run_seconds) const {
  Amounts a;
  // Sold in units of min_gpus (a whole node where min_gpus = gpus_per_node; four nodes where it is 32 of 8).
  a.gpus = std::ceil(static_cast<double>(needs.gpus) / min_gpus_) * min_gpus_;
  a.nodes = a.gpus / gpus_per_node_;
  const double per_hour = (per_node_ ? a.nodes : a.gpus) / kHour;
  const double restarts = run_seconds * restart_overhead(needs);
  const double start = start_seconds_.value_or(0), queue = queue_seconds_.value_or(0);
  const double held = start + run_seconds + restarts + (queue_billed_ ? queue : 0.0);
  a.billed_seconds = increment_ > 0 ? std::ceil(held / increment_ - 1e-9) * increment_ : held;
  a.seconds = queue + start + run_seconds + restarts;
  a.start = start_seconds_.has_value();
  a.queue = queue_seconds_.has_value();
  a.restarts = !spot_ || mtti_seconds_.has_value();
  if (has_price_) {
    a.start_factor = start * per_hour;
    a.queue_factor = queue_billed_ ? queue * per_hour : 0.0;
    a.restart_factor = restarts * per_hour;
    a.price_factor =
        (a.billed_seconds - held + run_seconds) * per_hour;  // rounding up to the increment is part of compute
  }
  a.energy = !owned_ || energy_per_node_hour_.has_value();
  a.energy_amount = energy_per_node_hour_.value_or(0) * a.nodes * (start + run_seconds + restarts) / kHour;
  a.storage = needs.storage_gb && (storage_per_gb_month_ || *needs.storage_gb == 0);
  if (a.storage) a.storage_amount = *needs.storage_gb * storage_per_gb_month_.value_or(0) * a.seconds / kMonthSeconds;
  a.egress = needs.egress_gb && (egress_per_gb_ || *needs.egress_gb == 0);
  if (a.egress) a.egress_amount = *needs.egress_gb * egress_per_gb_.value_or(0);
  return a;
}

std::optional<double> Pricer::quick(const RunNeeds& needs) const {
  if (!usable()) return std::nullopt;
  const Amounts a = amounts(needs, needs.seconds);
  return a.priced() * price_ * rate_ + a.energy_amount + a.storage_amount + a.egress_amount;
}

Pricer::Line Pricer::line(const RunNeeds& needs) const {
  const Amounts a = amounts(needs, needs.seconds);
  return {a.energy_amount + a.storage_amount + a.egress_amount, a.priced() * rate_};
}

Cost Pricer::cost(const RunNeeds& needs) const {
  Cost c;
  c.currency = currency_;
  c.flags = flags_;
  c.assumed = assumed_;
  c.rate_date = rate_date_;
  c.rule = rule_;
  c.reason = reason_;
  const double low_seconds = needs.seconds_low > 0 ? needs.seconds_low : needs.seconds,
               high_seconds = needs.seconds_high > 0 ? needs.seconds_high : needs.seconds;
  const Amounts mid = amounts(needs, needs.seconds), low = amounts(needs, low_seconds),
                high = amounts(needs, high_seconds);
  c.seconds = mid.seconds;
  c.seconds_low = low.seconds;
  c.seconds_high = high.seconds;
  c.billed_seconds = mid.billed_seconds;
  c.billed_gpus = mid.gpus;
  c.billed_nodes = mid.nodes;
  if (!needs.storage_gb) c.assumed.push_back("storage_gb=not stated (storage left out of the cost)");
  else if (!mid.storage) c.assumed.push_back("storage price=not stated (storage left out of the cost)");
  if (!needs.egress_gb) c.assumed.push_back("egress_gb=not stated (egress left out of the cost)");
  else if (!mid.egress) c.assumed.push_back("egress price=not stated (egress left out of the cost)");

  const double unit = price_ * rate_;
  const auto part = [&](const char* name, bool known, double amount) {
    std::optional<Money> m;
    if (known) m = Money(amount, currency_);
    c.parts.emplace_back(name, m);
  };
  const bool priced = usable();
  part("compute", priced && (has_price_ || energy_per_node_hour_), mid.price_factor * unit);
  part("start", priced && mid.start, mid.start_factor * unit);
  part("queue", priced && mid.queue, mid.queue_factor * unit);
  part("storage", mid.storage, mid.storage_amount);
  part("egress", mid.egress, mid.egress_amount);
  part("energy", priced && mid.energy, mid.energy_amount);
  part("restarts", priced && mid.restarts, mid.restart_factor * unit);
  if (!priced) return c;

  Money sum(0, currency_);
  for (const auto& [name, amount] : c.parts)
    if (amount) sum += *amount;
  c.amount = sum;
  const auto rest = [](const Amounts& a) { return a.energy_amount + a.storage_amount + a.egress_amount; };
  c.low = Money(std::min(sum.amount(), low.priced() * unit * (1 - price_spread_) + rest(low)), currency_);
  c.high = Money(std::max(sum.amount(), high.priced() * unit * (1 + price_spread_) + rest(high)), currency_);
  return c;
}

Cost total_cost(const Offer& offer, const RunNeeds& needs, const Rates& rates, const std::string& currency,
                std::int64_t now, const PriceMaxAge& max_age) {
  return Pricer(offer, rates, currency, now, max_age).cost(needs);
}

nlohmann::ordered_json to_json(const Cost& cost) {
  const auto amount = [](const std::optional<Money>& m) {
    return m ? nlohmann::ordered_json(m->amount()) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json j{{"amount", amount(cost.amount)},
                           {"low", amount(cost.low)},
                           {"high", amount(cost.high)},
                           {"currency", cost.currency}};
  auto& parts = j["parts"] = nlohmann::ordered_json::object();
  for (const auto& [name, m] : cost.parts) parts[name] = amount(m);
  if (!cost.rate_date.empty()) j["rate_date"] = cost.rate_date;
  if (!cost.rule.empty()) j["unknown"] = cost.reason;
  return j;
}

}  // namespace shardfit::pricing
