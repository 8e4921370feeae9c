#include "selector/cli/job_setting.hpp"

#include <cstdio>
#include <optional>

#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/calibrate/calibration.hpp"
#include "selector/search/adapter_targets.hpp"

namespace shardfit::cli {

search::Setting JobSetting::setting() const {
  return {.job = job,
          .plan = plan,
          .model = *model,
          .device = *device,
          .host = host ? &*host : nullptr,
          .interconnect = interconnect ? &*interconnect : nullptr,
          .calibration = calibration};
}

const timing::Calibration* stored_calibration() {
  static const std::optional<timing::Calibration> calibration = [] {
    std::string state_dir;
    try {
      state_dir = pricing::read_site().state_dir;
    } catch (const Error&) {  // a broken site file is told by the commands that need it
    }
    return calibrate::load_calibration(state_dir);
  }();
  return calibration ? &*calibration : nullptr;
}

void rethrow_model_error(const Error& error, const std::string& where) {
  std::string message = error.message;
  if (!error.where.empty()) message = error.where + ": " + message;
  if (!error.file.empty()) message = error.file + ": " + message;
  throw Error(error.code, where, message, error.remedy);
}

JobSetting load_job_setting(const std::string& job_file, const std::string& plan_file, const std::string& host_file,
                            const std::string& as_family) {
  JobSetting s;
  s.job = job::read_job(job_file);
  try {
    s.model = std::make_shared<const model::Model>(model::load_model(s.job.model_path(), as_family));
  } catch (const Error& e) {
    try {
      rethrow_model_error(e, "/model");
    } catch (Error& told) {
      told.in_file(job_file);
      throw;
    }
  }
  try {
    if (auto line = search::settle_targets(s.job, *s.model, "")) s.assumed.push_back(std::move(*line));
  } catch (Error& e) {
    e.in_file(job_file);
    throw;
  }
  if (plan_file.empty()) {
    s.plan.gpu = "cpu";
    if (s.job.global_batch_sequences) s.plan.gradient_accumulation = s.job.global_batch_sequences;
    s.assumed.push_back("plan=one rank on this machine's CPU, micro batch 1 (not stated; give --plan)");
  } else {
    s.plan = job::read_plan(plan_file);
  }
  try {
    s.device = &hardware::find_device(s.plan.gpu, "/gpu");
    job::check_plan_against_job(s.job, s.plan);
  } catch (Error& e) {
    if (!plan_file.empty()) {
      if (e.where.starts_with("/plan/")) e.where.erase(0, 5);  // there the plan is the whole file
      e.in_file(plan_file);
    }
    throw;
  }
  for (const auto& warning : s.job.warnings)
    std::fprintf(stderr, "shardfit: warning: %s: %s\n", job_file.c_str(), warning.c_str());
  for (const auto& warning : s.plan.warnings)
    std::fprintf(stderr, "shardfit: warning: %s: %s\n", plan_file.c_str(), warning.c_str());
  if (!host_file.empty()) {
    try {
      const Json object = read_json_file(host_file);
      if (object.is_object() && (object.contains("host") || object.contains("interconnect"))) {
        ObjectReader r(object, "");
        if (const Json* v = r.get("host")) s.host = pricing::parse_host(*v, r.at("host"));
        if (const Json* v = r.get("interconnect"))
          s.interconnect = pricing::parse_interconnect(*v, r.at("interconnect"));
        r.finish();
      } else {
        s.host = pricing::parse_host(object, "");
      }
    } catch (Error& e) {
      e.in_file(host_file);
      throw;
    }
  }
  if (s.device->is_cpu) s.calibration = stored_calibration();
  return s;
}

}  // namespace shardfit::cli
