#include "tests/truth/memory_rows.hpp"

#include <sstream>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"

namespace shardfit::truth {

std::vector<Case> read_cases(const std::string& file) {
  std::vector<Case> cases;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);)
    if (!line.empty()) {
      Case c;
      c.line = nlohmann::json::parse(line);
      c.id = c.line.at("id");
      cases.push_back(std::move(c));
    }
  return cases;
}

nlohmann::ordered_json estimate_case(const Case& c, const std::string& folder) {
  nlohmann::ordered_json out;
  out["id"] = c.id;
  try {
    const auto job = job::parse_job(c.line.at("job"), folder, "/job");
    const auto plan = job::parse_plan(c.line.at("plan"), "/plan");
    const auto model = model::load_model(job.model_path());
    const auto& device = hardware::find_device(plan.gpu, "/plan/gpu");
    const auto r = memory::estimate_memory({job, plan, model, device});
    auto& m = out["memory"];
    m["allocated_peak"] = r.memory.allocated_peak;
    m["reserved_peak"] = r.memory.reserved_peak;
    m["device_peak"] = r.memory.device_peak;
    m["allocated_peak_high"] = r.memory.allocated_peak_high;
    m["device_peak_high"] = r.memory.device_peak_high;
    m["phase"] = r.memory.phase;
    m["terms"] = nlohmann::ordered_json::array();
    for (const auto& t : r.memory.terms) m["terms"].push_back({{"name", t.name}, {"bytes", t.bytes}});
    m["by_stage"] = nlohmann::ordered_json::array();
    for (const auto& p : r.memory.by_stage)
      m["by_stage"].push_back({{"allocated_peak", p.allocated_peak}, {"reserved_peak", p.reserved_peak}, {"device_peak", p.device_peak}});
    m["host"] = r.memory.host;
    m["host_pinned"] = r.memory.host_pinned;
    m["nvme"] = r.memory.nvme;
    out["parameters"] = {{"total", r.parameters_total}, {"trainable", r.parameters_trainable}};
    out["fits"] = r.fits;
    out["capacity"] = r.capacity_bytes;
    out["why"] = r.why;
    out["known"] = r.known;
    out["assumed"] = r.assumed;
  } catch (const Error& e) {
    out["error"] = {{"code", e.code}, {"where", e.where}, {"message", e.message}, {"remedy", e.remedy}};
  }
  return out;
}

}  // namespace shardfit::truth
