// shardfit estimate: memory, time and verdict of one job on one plan, or of a file of them.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/cli/advice_text.hpp"
#include "selector/cli/estimate_table.hpp"
#include "selector/cli/job_setting.hpp"
#include "selector/cli/parse.hpp"
#include "selector/cli/records.hpp"
#include "selector/search/model_cache.hpp"

namespace shardfit::cli {

namespace {

OrderedJson estimate_record(const Json& line, const std::string& base_dir, const std::string& as_family, search::ModelCache& models) {
  ObjectReader r(line, "");
  const auto job = job::parse_job(r.required("job"), base_dir, "/job");
  const auto plan = job::parse_plan(r.required("plan"), "/plan");
  job::require_estimable(job, "/job");
  JobSetting s;
  s.job = job;
  s.plan = plan;
  s.device = &hardware::find_device(plan.gpu, "/plan/gpu");
  job::check_plan_against_job(job, plan);
  if (const Json* v = r.get("host")) s.host = pricing::parse_host(*v, "/host");
  if (const Json* v = r.get("interconnect")) s.interconnect = pricing::parse_interconnect(*v, "/interconnect");
  try {
    s.model = models.load(job.model_path(), as_family);
  } catch (const Error& e) {
    rethrow_model_error(e, "/job/model");
  }
  if (s.device->is_cpu) s.calibration = stored_calibration();
  auto out = to_json(search::estimate(s.setting()).estimate);
  if (!plan.warnings.empty()) out["warnings"] = plan.warnings;
  return out;
}

}  // namespace

int estimate_command(const Arguments& arguments) {
  CLI::App app{"Predict memory, step time and whether a job fits", "estimate"};
  std::string job_file, in_file, plan_file, host_file, family;
  bool json = false;
  app.add_option("JOB", job_file, "Job file (JSON)");
  app.add_option("--in", in_file, "JSON lines of {\"id\", \"job\", \"plan\"[, \"host\", \"interconnect\", \"probes\"]}; - = standard input");
  app.add_option("--plan", plan_file, "Plan file (JSON); without it, one CPU rank of this machine");
  app.add_option("--host", host_file, "Host file: the \"host\" object of an offer, or {\"host\", \"interconnect\"}");
  app.add_option("--as", family, "Read the model as this family, whatever its config.json says");
  app.add_flag("--json", json, "Print the record instead of a table");
  if (const auto status = parse(app, arguments)) return *status;
  if (in_file.empty() == job_file.empty())
    throw Error("usage", "estimate", in_file.empty() ? "a job file or --in is missing" : "a job file and --in exclude each other", "see shardfit estimate --help");
  if (!in_file.empty()) {
    if (!plan_file.empty() || !host_file.empty()) throw Error("usage", "estimate", "--plan and --host are for a single job", "put \"plan\" and \"host\" into each line");
    search::ModelCache models;
    return answer_lines(in_file, [&](const Json& line, const std::string& base_dir) { return estimate_record(line, base_dir, family, models); });
  }
  const JobSetting s = load_job_setting(job_file, plan_file, host_file, family);
  auto estimated = search::estimate(s.setting());
  estimated.estimate.assumed.insert(estimated.estimate.assumed.begin(), s.assumed.begin(), s.assumed.end());
  const auto advice = estimated.estimate.fits == "yes" ? std::vector<memory::Advice>{} : advice_for(s);
  auto record = to_json(estimated.estimate);
  if (!advice.empty()) record["advice"] = advice_json(advice);
  const std::string text = json ? record.dump(2) + "\n" : estimate_table(s, estimated) + advice_table(advice);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitDone;
}

}  // namespace shardfit::cli
