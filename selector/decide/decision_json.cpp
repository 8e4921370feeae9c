#include <cmath>
#include <nlohmann/json.hpp>

#include "selector/decide/decision.hpp"

namespace shardfit::decide {

namespace {

using Ordered = nlohmann::ordered_json;

Ordered finite_or_null(double value) { return std::isfinite(value) ? Ordered(value) : Ordered(nullptr); }

}  // namespace

nlohmann::ordered_json to_json(const Candidate& c) {
  Ordered o = Ordered::object();
  o["offer"] = c.offer;
  o["provider"] = c.provider;
  o["region"] = c.region;
  if (!c.cluster.empty()) o["cluster"] = c.cluster;
  if (!c.partition.empty()) o["partition"] = c.partition;
  if (!c.features.empty()) o["features"] = c.features;
  o["gpu"] = c.gpu;
  o["plan"] = c.plan ? job::to_json(*c.plan) : Ordered(nullptr);
  if (c.plan) o["plan_sha256"] = job::plan_sha256(*c.plan);
  o["estimate"] = c.estimate ? shardfit::to_json(*c.estimate) : Ordered(nullptr);
  if (!c.memory_why.empty()) o["memory_why"] = c.memory_why;
  o["cost"] = pricing::to_json(c.cost);
  if (c.price) {
    o["price"] = Ordered{{"amount", c.price->amount}, {"currency", c.price->currency}, {"per", c.price->per},
                         {"kind", c.price->kind},     {"as_of", c.price->as_of},       {"source", c.price->source}};
    o["offer_gpus_per_node"] = c.offer_gpus_per_node;
  }
  o["seconds"] = c.plan ? finite_or_null(c.seconds) : Ordered(nullptr);
  o["seconds_low"] = c.plan ? finite_or_null(c.seconds_low) : Ordered(nullptr);
  o["seconds_high"] = c.plan ? finite_or_null(c.seconds_high) : Ordered(nullptr);
  o["steps"] = c.steps;
  o["flags"] = c.flags;
  return o;
}

nlohmann::ordered_json to_json(const Decision& d) {
  Ordered o = Ordered::object();
  o["decision"] = d.decision;
  o["chosen"] = d.chosen ? to_json(*d.chosen) : Ordered(nullptr);
  o["tied_with"] = d.tied_with;
  o["confidence"] = d.confidence ? finite_or_null(*d.confidence) : Ordered(nullptr);
  o["runner_up"] = nullptr;
  if (d.runner_up)
    o["runner_up"] = Ordered{{"offer", d.runner_up->offer},
                             {"cost", d.runner_up->cost ? Ordered(*d.runner_up->cost) : Ordered(nullptr)},
                             {"seconds", finite_or_null(d.runner_up->seconds)},
                             {"why", d.runner_up->why}};
  o["candidates"] = Ordered::array();
  for (const auto& c : d.candidates) o["candidates"].push_back(to_json(c));
  o["rejected"] = Ordered::array();
  for (const auto& r : d.rejected)
    o["rejected"].push_back(Ordered{
        {"offer", r.offer}, {"region", r.region}, {"rule", r.rule}, {"reason", r.reason}, {"nearest", r.nearest}});
  o["flips"] = Ordered::array();
  for (const auto& f : d.flips)
    o["flips"].push_back(Ordered{{"what", f.what},
                                 {"from", finite_or_null(f.from)},
                                 {"to", finite_or_null(f.to)},
                                 {"unit", f.unit},
                                 {"then", f.then}});
  o["currency"] = d.currency;
  o["pins"] = d.pins;
  o["assumed"] = d.assumed;
  o["cells"] = d.cells;
  return o;
}

}  // namespace shardfit::decide
