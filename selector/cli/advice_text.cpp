#include "selector/cli/advice_text.hpp"

#include <cmath>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/time/time.hpp"

namespace shardfit::cli {

namespace {

memory::StepSeconds seconds_of(const JobSetting& s) {
  return [&s](const job::Job& job, const job::Plan& plan) -> std::optional<double> {
    try {
      const auto step = timing::step_time(*timing::prepare(job, *s.model), plan, *s.device, s.host ? &*s.host : nullptr,
                                          s.interconnect ? &*s.interconnect : nullptr, s.calibration)
                            .step;
      return std::isfinite(step) && step > 0 ? std::optional(step) : std::nullopt;
    } catch (const Error&) {
      return std::nullopt;  // a CPU that was not calibrated
    }
  };
}

memory::Request request_of(const JobSetting& s) {
  return {.job = s.job, .plan = s.plan, .model = *s.model, .device = *s.device, .host = s.host ? &*s.host : nullptr};
}

}  // namespace

std::vector<memory::Advice> advice_for(const JobSetting& s) { return memory::advise(request_of(s), seconds_of(s)); }
std::vector<memory::Advice> hints_for(const JobSetting& s) { return memory::hints(request_of(s), seconds_of(s)); }

std::string hints_table(const std::vector<memory::Advice>& hints) {
  if (hints.empty()) return "";
  std::string out = "\nTraining otherwise would make it fit too; the result is then another\n";
  for (const auto& h : hints) out += "  " + memory::to_words(h) + "\n";
  return out;
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
    item["frees_host"] = a.frees_host;
    item["device_peak_high"] = a.device_peak_high;
    item["host"] = a.host;
    item["nvme"] = a.nvme;
    item["gpus"] = a.gpus;
    item["slower"] = a.slower ? OrderedJson(*a.slower) : OrderedJson(nullptr);
    item["costs"] = a.costs;
    item["fits"] = a.makes_it_fit;
    item["needs"] = a.condition.empty() ? OrderedJson(nullptr) : OrderedJson(a.condition);
    item["plan"] = job::to_json(a.plan);
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace shardfit::cli
