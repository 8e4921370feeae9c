#include "selector/decide/rejections.hpp"

#include <fmt/format.h>

#include <cmath>

#include "regions/base/text.hpp"
#include "selector/decide/table.hpp"
#include "selector/decide/words.hpp"

namespace shardfit::decide {

namespace {

std::string price_of(const search::Found& f, const RejectionContext& context) {
  return fmt::format("{} in {} ({})", money_words(f.cost, context.currency), format_duration(f.seconds),
                     plan_words(f.plan));
}

std::string against_chosen(double cost, const RejectionContext& context) {
  if (!context.chosen_cost || !(*context.chosen_cost > 0)) return "";
  const double ratio = cost / *context.chosen_cost - 1;
  return ratio < 0 ? ", " + percent_words(-ratio) + " less than the choice"
                   : ", " + percent_words(ratio) + " more than the choice";
}

}  // namespace

Rejection rejected_by_rule(const Standing& s, const search::OfferResult* result, const RejectionContext& context) {
  Rejection r{.offer = s.offer->id, .region = s.offer->region, .rule = s.rule, .reason = s.reason, .nearest = s.remedy};
  if (result && result->cheapest) {
    if (!r.nearest.empty()) r.nearest += "; ";
    r.nearest +=
        "without this rule: " + price_of(*result->cheapest, context) + against_chosen(result->cheapest->cost, context);
  }
  return r;
}

Rejection rejected_by_search(const Standing& s, const search::OfferResult& result, const RejectionContext& context) {
  Rejection r{.offer = s.offer->id, .region = s.offer->region};
  if (result.cheapest) {
    const auto& cheapest = *result.cheapest;
    const auto& fastest = result.fastest ? *result.fastest : cheapest;
    const auto& most = s.offer->max_seconds;
    if (most && fastest.needs.seconds > *most) {
      r.rule = "partition";
      r.reason = fmt::format("the run takes at least {}, but the partition's MaxTime is {}",
                             format_duration(fastest.needs.seconds), format_duration(*most));
      r.nearest = "a partition with a longer MaxTime: " + price_of(fastest, context);
    } else if (fastest.seconds > context.limits.deadline_seconds) {
      r.rule = "deadline";
      r.reason = fmt::format("the fastest plan takes {}, the deadline is {}", format_duration(fastest.seconds),
                             format_duration(context.limits.deadline_seconds));
      r.nearest = "deadline " + format_duration(std::ceil(fastest.seconds)) + ": " + price_of(fastest, context);
    } else if (cheapest.cost > context.limits.max_cost) {
      r.rule = "max_cost";
      r.reason =
          fmt::format("the cheapest plan costs {}, the limit is {}", money_words(cheapest.cost, context.currency),
                      money_words(context.limits.max_cost, context.currency));
      r.nearest = "max_cost " + money_words(cheapest.cost, context.currency) + ": " + price_of(cheapest, context);
    } else {
      r.rule = "max_cost";
      r.reason = fmt::format("plans inside the deadline cost more than {}, and cheaper ones miss the deadline",
                             money_words(context.limits.max_cost, context.currency));
      r.nearest = "the fastest: " + price_of(fastest, context) + "; the cheapest: " + price_of(cheapest, context);
    }
    return r;
  }
  r.rule = "memory";
  if (result.unsure) {
    r.reason = "unsure whether it fits: " + (result.unsure->memory.why.empty()
                                                 ? std::string("the bound lies within the error of the estimate")
                                                 : result.unsure->memory.why);
    r.nearest = "--allow-unsure takes " + price_of(*result.unsure, context);
    return r;
  }
  if (result.least_memory) {
    const auto& f = *result.least_memory;
    const double need = static_cast<double>(f.memory.memory.device_peak_high), have = f.memory.capacity_bytes;
    r.reason = f.memory.why.empty() ? fmt::format("nothing fits: the most frugal plan needs {} of {}", format_gib(need),
                                                  format_gib(have))
                                    : "nothing fits: " + f.memory.why;
    r.nearest = fmt::format(
        "the most frugal plan, {}, needs {}{}", plan_words(f.plan), format_gib(need),
        have > 0 && need > have ? fmt::format(" of {}: {} too many", format_gib(have), format_gib(need - have)) : "");
    return r;
  }
  if (!result.refusal.empty()) {
    r.rule = result.refusal_code;
    r.reason = result.refusal;
    return r;
  }
  if (result.cells > 0) {
    r.reason =
        "nothing fits: parameters, optimizer states and saved activations alone exceed the device's memory under every plan";
    r.nearest = "a device with more memory, more nodes, or offload";
    return r;
  }
  r.rule = "no_plan";
  r.reason = "the global batch cannot be divided evenly over any number of GPUs sold here";
  r.nearest = "a global batch that the number of GPUs divides";
  return r;
}

}  // namespace shardfit::decide
