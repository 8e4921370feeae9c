#include "selector/search/estimator.hpp"

#include <algorithm>
#include <cmath>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/outlook.hpp"
#include "selector/model/model.hpp"
#include "selector/time/time.hpp"

namespace shardfit::search {

namespace {
// "key=value (why)": two parts of the selector may assume the same for reasons of their own.
void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  const auto core = [](const std::string& line) { return line.substr(0, line.find(" (")); };
  for (const auto& line : from)
    if (std::none_of(to.begin(), to.end(), [&](const std::string& known) { return core(known) == core(line); }))
      to.push_back(line);
}
}  // namespace

Estimated estimate(const Setting& s) {
  Estimated out;
  const memory::Request request{.job = s.job, .plan = s.plan, .model = s.model, .device = s.device, .host = s.host};
  auto memory = s.memory ? memory::at_host(request, *s.memory) : memory::estimate_memory(request);
  out.estimate.memory = std::move(memory.memory);
  out.estimate.parameters_total = memory.parameters_total;
  out.estimate.parameters_trainable = memory.parameters_trainable;
  out.estimate.fits = memory.fits;
  out.memory_why = memory.why;
  out.capacity_bytes = memory.capacity_bytes;
  append(out.estimate.assumed, memory.assumed);
  append(out.estimate.assumed, s.model.notes);
  try {
    auto time = timing::estimate_time({.job = s.job,
                                       .plan = s.plan,
                                       .model = s.model,
                                       .device = s.device,
                                       .host = s.host,
                                       .interconnect = s.interconnect,
                                       .calibration = s.calibration,
                                       .work = s.work});
    out.estimate.basis = time.basis;
    append(out.estimate.assumed, time.assumed);
    constexpr double kLongest = 1e12;  // 30,000 years: a rate of nearly 0 somewhere
    if (time.time.step > 0 && time.time.step_high < kLongest) out.estimate.time = std::move(time.time);
    else
      out.estimate.assumed.push_back(
          "time unknown: a step would take longer than 1e12 s; check the rates of host and interconnect");
  } catch (const Error& e) {
    out.estimate.assumed.push_back("time unknown: " + e.message + (e.remedy.empty() ? "" : " (" + e.remedy + ")"));
  }
  if (const auto rounding = job::batch_rounding(s.job, s.plan)) out.estimate.assumed.push_back(*rounding);
  return out;
}

}  // namespace shardfit::search
