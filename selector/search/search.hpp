// The search: offers x sizes x plans, priced and timed, memory replayed only where a cell could still matter.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "pricing/cost.hpp"
#include "pricing/offers.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"
#include "selector/search/duration.hpp"
#include "selector/time/time.hpp"

namespace shardfit::hardware {
struct Device;
}
namespace shardfit::model {
struct Model;
}

namespace shardfit::search {

// An offer that may be chosen as far as pins and prices go.
struct Choice {
  std::size_t index = 0;  // the caller's number of it
  const pricing::Offer* offer = nullptr;
  const hardware::Device* device = nullptr;
  const pricing::Pricer* pricer = nullptr;
  bool outside = false;  // a rule keeps it out: only what it would cost is of interest
};

struct Limits {
  double deadline_seconds = std::numeric_limits<double>::infinity();
  double max_cost = std::numeric_limits<double>::infinity();  // in the pricers' currency
  std::optional<std::int64_t> max_nodes;
  bool allow_unsure = false;
  bool exhaustive = false;  // replay every cell's memory: what the tests compare the pruned search with
};

// A plan at an offer that was found.
struct Found {
  std::size_t choice = 0;  // position in the list given
  job::Plan plan;
  memory::Result memory;
  timing::StepTime time;
  pricing::RunNeeds needs;  // what pricer->cost() takes
  std::int64_t steps = 0;
  bool tight = false;            // less than 5 % of the device's memory to spare
  double cost = 0, seconds = 0;  // seconds: queue + start + run + restarts
};

struct OfferResult {
  std::optional<Found> best;  // cheapest that fits, within the limits
  std::optional<Found> cheapest,
      fastest;                        // the same without deadline and max_cost; fastest only where there is no best
  std::optional<Found> tight;         // cheapest that fits with less than 5 % to spare, within the limits
  std::optional<Found> unsure;        // cheapest with the verdict "unsure", within the limits
  std::optional<Found> least_memory;  // where nothing fits: the plan that comes closest
  std::string refusal;                // where no plan could be estimated at all: why
  std::string refusal_code;
  std::size_t cells = 0;  // plans considered
};

struct Outcome {
  std::vector<OfferResult> offers;     // as the list given
  std::vector<Found> front;            // cost/time Pareto front over all offers, cheapest first
  std::size_t cells = 0, replays = 0;  // cells priced; memory estimates made
};

// Throws Error for a plan of an offer's own list that does not agree with the job.
Outcome search(const job::Job& job, const model::Model& model, const Duration& duration,
               const std::vector<Choice>& choices, const Limits& limits,
               const timing::Calibration* calibration = nullptr);

// What one plan needs of an offer: seconds from step times.
pricing::RunNeeds run_needs(const job::Job& job, const job::Plan& plan, const timing::StepTime& time,
                            std::int64_t steps);

}  // namespace shardfit::search
