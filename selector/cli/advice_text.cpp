#include "selector/cli/advice_text.hpp"

#include <cmath>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/time/time.hpp"

namespace shardfit::cli {

std::vector<memory::Advice> advice_for(const JobSetting& s) {
  const auto seconds = [&](const job::Job& job, const job::Plan& plan) -> std::optional<double> {
    try {
      const auto step = timing::step_time(*timing::prepare(job, *s.model), plan, *s.device, s.host ? &*s.host : nullptr,
                                          s.interconnect ? &*s.interconnect : nullptr, s.calibration)
                            .step;
      return std::isfinite(step) && step > 0 ? std::optional(step) : std::nullopt;
    } catch (const Error&) {
      return std::nullopt;  // a CPU that was not calibrated
    }
  };
  return memory::advise(
      {.job = s.job, .plan = s.plan, .model = *s.model, .device = *s.device, .host = s.host ? &*s.host : nullptr},
      seconds);
}

std::string advice_table(const std::vector<memory::Advice>& advice) {
  if (advice.empty()) return "";
  std::string out = advice.front().makes_it_fit ? "\nIt would fit with one of these, cheapest first\n"
                                                : "\nNothing known here makes it fit; what frees most\n";
  for (const auto& a : advice) out += "  " + memory::to_words(a) + "\n";
  return out;
}

OrderedJson advice_json(const std::vector<memory::Advice>& advice) {
  OrderedJson list = OrderedJson::array();
  for (const auto& a : advice) {
    OrderedJson item, changes = OrderedJson::array();
    for (const auto& c : a.changes) changes.push_back({{"key", c.key}, {"from", c.from}, {"to", c.to}});
    item["changes"] = std::move(changes);
    item["frees"] = a.frees;
    item["device_peak_high"] = a.device_peak_high;
    item["host"] = a.host;
    item["nvme"] = a.nvme;
    item["gpus"] = a.gpus;
    item["slower"] = a.slower ? OrderedJson(*a.slower) : OrderedJson(nullptr);
    item["fits"] = a.makes_it_fit;
    item["needs"] = a.condition.empty() ? OrderedJson(nullptr) : OrderedJson(a.condition);
    item["plan"] = job::to_json(a.plan);
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace shardfit::cli
