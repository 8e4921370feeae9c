// From a job and offers to a decision: pins, price rules, search, limits, ties, flips.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pricing/cost.hpp"
#include "pricing/offers.hpp"
#include "pricing/rates.hpp"
#include "regions/catalogue.hpp"
#include "selector/decide/decision.hpp"
#include "selector/job/job.hpp"

namespace shardfit::timing {
struct Calibration;
}

namespace shardfit::search {
class ModelCache;
}

namespace shardfit::decide {

// What the caller demands on top of the job's own deadline, max_cost and pins; of two limits the stricter holds.
struct Limits {
  std::vector<std::string> pins;
  std::optional<double> deadline_seconds;
  std::optional<job::Money> max_cost;
  std::string currency;  // "" = that of max_cost, else Options::default_currency
};

struct Options {
  const regions::Catalogue* catalogue = nullptr;  // nullptr = the shipped one
  const pricing::Rates* rates = nullptr;          // nullptr = the shipped ones
  pricing::PriceMaxAge price_max_age;
  const timing::Calibration* calibration = nullptr;  // by which the device "cpu" is timed; nullptr = none
  search::ModelCache* models = nullptr;              // kept between calls; nullptr = read the model anew
  std::string default_currency = "EUR";
  std::string as_family;  // --as
  std::string job_where;  // JSON pointer of the job, for errors: "" or "/job"
  double tie_percent = 5;
  int top = 10;
  bool allow_unsure = false;
  std::vector<std::string> gpus;          // --gpu: only these (keys, aliases or Slurm types); empty = any
  std::optional<std::int64_t> max_nodes;  // --max-nodes
};

// {"pins": [...], "deadline": "12h", "max_cost": ..., "currency": "EUR"}
Limits parse_limits(const nlohmann::json& object, const std::string& where);

// Throws Error for what is wrong with the job, the model or an offer's plan; an offer that cannot be chosen is a
// Rejection. `now`: Unix seconds by which prices age and certificates end.
Decision decide(const job::Job& job, const std::vector<pricing::Offer>& offers, const Limits& limits, std::int64_t now,
                const Options& options = {});

}  // namespace shardfit::decide
