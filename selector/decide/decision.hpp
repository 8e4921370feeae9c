// The answer to "where should this job run, and how": docs/formats.md, "Offers and the decision".
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pricing/cost.hpp"
#include "pricing/offers.hpp"
#include "selector/estimate.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"

namespace shardfit::decide {

// One way to run the job at one offer. A job of pins alone has neither plan nor estimate.
struct Candidate {
  std::string offer, provider, region, cluster, partition, gpu;
  std::vector<std::string> features;  // Slurm node features that select exactly these nodes
  std::optional<job::Plan> plan;
  std::optional<Estimate> estimate;
  std::string memory_why;            // one sentence where the verdict is not "yes"
  double device_capacity_bytes = 0;  // 0 = unknown
  pricing::Cost cost;
  std::optional<pricing::Price> price;   // of the offer, as it was when decided: what the ledger charges by
  std::int64_t offer_gpus_per_node = 1;  // of the offer's nodes, of which the plan may use fewer
  double seconds = 0, seconds_low = 0, seconds_high = 0;  // queue + start + run + restarts
  double run_seconds = 0, run_seconds_high = 0;  // the run alone: what a time limit has to cover, with start_seconds
  std::int64_t steps = 0;
  std::vector<std::string> flags;  // "price stale: 96 days", "memory unsure: ...", "evidence: listed"
};

// Why an offer cannot be chosen, and the smallest change of limits or settings under which it could.
struct Rejection {
  std::string offer, region;
  std::string rule;  // the atom that failed, "deadline", "max_cost", "memory", "partition", a price rule, ...
  std::string reason, nearest;
};

// A number of the world and the value at which another offer would be chosen.
struct Flip {
  std::string what;  // "price of verda-fin03-8xh100"
  double from = 0, to = 0;
  std::string unit;  // "USD/node_hour", "sequences", "s"
  std::string then;  // the offer chosen then
};

struct RunnerUp {
  std::string offer, why;      // why it lost: "costs 8 % more", with the part that decides
  std::optional<double> cost;  // in the decision's currency
  double seconds = 0;
};

struct Decision {
  std::string decision = "none";  // chosen | tie | none
  std::string currency;
  std::optional<Candidate> chosen;
  std::vector<std::string> tied_with;  // offers
  std::optional<double> confidence;    // that the chosen one is the cheapest; absent where there is no rival or no cost
  std::vector<Candidate> candidates;   // cost/time Pareto front first, then the best of each other offer
  std::vector<Rejection> rejected;
  std::vector<Flip> flips;
  std::optional<RunnerUp> runner_up;
  std::vector<std::string> pins;  // atoms that every choice had to satisfy
  std::vector<std::string> assumed;
  std::int64_t cells = 0;  // (offer, plan) pairs that were considered
};

nlohmann::ordered_json to_json(const Decision& decision);  // docs/formats.md 4
nlohmann::ordered_json to_json(const Candidate& candidate);

}  // namespace shardfit::decide
