#include <cmath>
#include <nlohmann/json.hpp>

#include "selector/estimate.hpp"

namespace shardfit {

namespace {

using Ordered = nlohmann::ordered_json;

Ordered peaks_json(const MemoryPeaks& p) {
  return {{"allocated_peak", p.allocated_peak}, {"reserved_peak", p.reserved_peak}, {"device_peak", p.device_peak}};
}

Ordered finite_or_null(double value) { return std::isfinite(value) ? Ordered(value) : Ordered(nullptr); }

Ordered time_json(const TimeEstimate& t) {
  Ordered o = {{"step", finite_or_null(t.step)},
               {"step_low", finite_or_null(t.step_low)},
               {"step_high", finite_or_null(t.step_high)},
               {"tokens_per_second_per_gpu", finite_or_null(t.tokens_per_second_per_gpu)},
               {"bound_by", t.bound_by}};
  Ordered parts = Ordered::object();
  for (const char* name :
       {"compute", "communication_exposed", "pcie_exposed", "cpu_optimizer", "nvme_exposed", "input"})
    parts[name] = 0.0;
  for (const auto& [name, seconds] : t.parts) parts[name] = finite_or_null(seconds);
  o["parts"] = std::move(parts);
  return o;
}

}  // namespace

nlohmann::ordered_json to_json(const Estimate& e) {
  Ordered memory = peaks_json(e.memory);
  memory["allocated_peak_high"] = e.memory.allocated_peak_high;
  memory["device_peak_high"] = e.memory.device_peak_high;
  memory["phase"] = e.memory.phase;
  memory["terms"] = Ordered::array();
  for (const auto& term : e.memory.terms)
    memory["terms"].push_back(Ordered{{"name", term.name}, {"bytes", term.bytes}});
  memory["by_stage"] = Ordered::array();
  for (const auto& stage : e.memory.by_stage) memory["by_stage"].push_back(peaks_json(stage));
  memory["host"] = e.memory.host;
  memory["host_pinned"] = e.memory.host_pinned;
  memory["nvme"] = e.memory.nvme;
  Ordered o = Ordered::object();
  o["memory"] = std::move(memory);
  o["parameters"] = Ordered{{"total", e.parameters_total}, {"trainable", e.parameters_trainable}};
  o["time"] = e.time ? time_json(*e.time) : Ordered(nullptr);
  o["fits"] = e.fits;
  o["basis"] = e.basis;
  o["assumed"] = e.assumed;
  return o;
}

}  // namespace shardfit
