// Why an offer was not chosen, and the nearest relaxation that would let it in.
#pragma once
#include "selector/decide/decision.hpp"
#include "selector/decide/eligibility.hpp"
#include "selector/search/search.hpp"

namespace shardfit::decide {

struct RejectionContext {
  const search::Limits& limits;
  std::string currency;
  std::optional<double> chosen_cost;  // of the decision, for "saves 40 %"
};

// An offer that a pin, its partition or its price keeps out. `result` (may be null): what it would do if it were let
// in.
Rejection rejected_by_rule(const Standing& standing, const search::OfferResult* result,
                           const RejectionContext& context);
// An offer where the search found nothing inside the limits.
Rejection rejected_by_search(const Standing& standing, const search::OfferResult& result,
                             const RejectionContext& context);

}  // namespace shardfit::decide
