// What would have to change for another offer to be chosen.
#pragma once
#include <string>
#include <vector>

#include "selector/decide/decision.hpp"
#include "selector/search/search.hpp"

namespace shardfit::decide {

struct FlipInput {
  const job::Job& job;
  const model::Model& model;
  const search::Duration& duration;
  const std::vector<search::Choice>& choices;
  const search::Found& chosen;
  const search::Found& runner_up;  // the cheapest plan of another offer
  const timing::Calibration* calibration = nullptr;
};

// Prices of both, the chosen one's step time, and where the optimizer is offloaded also the global batch and the host's
// optimizer rate: each alone, with everything else as it is. A number that would have to leave its possible range is
// left out.
std::vector<Flip> flips_between(const FlipInput& input);

}  // namespace shardfit::decide
