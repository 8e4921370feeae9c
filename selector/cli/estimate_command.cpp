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
#include "selector/search/adapter_targets.hpp"
#include "selector/search/model_cache.hpp"
#include "selector/search/probes.hpp"

namespace shardfit::cli {

namespace {

// Reads job and plan under `where` ("" or "/probes/0") of a line.
JobSetting setting_of(ObjectReader& r, const std::string& base_dir, const std::string& as_family,
                      search::ModelCache& models) {
  JobSetting s;
  s.job = job::parse_job(r.required("job"), base_dir, r.at("job"));
  s.plan = job::parse_plan(r.required("plan"), r.at("plan"));
  job::require_estimable(s.job, r.at("job"));
  s.device = &hardware::find_device(s.plan.gpu, r.at("plan") + "/gpu");
  job::check_plan_against_job(s.job, s.plan);
  try {
    s.model = models.load(s.job.model_path(), as_family);
  } catch (const Error& e) {
    rethrow_model_error(e, r.at("job") + "/model");
  }
  if (auto line = search::settle_targets(s.job, *s.model, r.at("job"))) s.assumed.push_back(std::move(*line));
  if (s.device->is_cpu) s.calibration = stored_calibration();
  return s;
}

search::Probe probe_of(const Json& value, const std::string& where, const JobSetting& main, const std::string& base_dir,
                       const std::string& as_family, search::ModelCache& models) {
  ObjectReader r(value, where);
  JobSetting s = setting_of(r, base_dir, as_family, models);
  s.host = main.host;
  s.interconnect = main.interconnect;
  search::Probe probe;
  ObjectReader measured(r.required("measured"), r.at("measured"));
  probe.measured_step = measured.number("step", 1e-9, 1e9).value_or(0);
  probe.measured_peak = measured.number("allocated_peak", 1, 1e15).value_or(0);
  const auto predicted = search::estimate(s.setting()).estimate;
  if (predicted.time) probe.predicted_step = predicted.time->step;
  probe.predicted_peak = static_cast<double>(predicted.memory.allocated_peak);
  return probe;
}

OrderedJson estimate_record(const Json& line, const std::string& base_dir, const std::string& as_family,
                            search::ModelCache& models) {
  ObjectReader r(line, "");
  JobSetting s = setting_of(r, base_dir, as_family, models);
  if (const Json* v = r.get("host")) s.host = pricing::parse_host(*v, "/host");
  if (const Json* v = r.get("interconnect")) s.interconnect = pricing::parse_interconnect(*v, "/interconnect");
  auto estimated = search::estimate(s.setting());
  estimated.estimate.assumed.insert(estimated.estimate.assumed.begin(), s.assumed.begin(), s.assumed.end());
  if (const Json* list = r.get("probes")) {
    if (!list->is_array()) throw Error("wrong_type", "/probes", "a list is needed, not " + brief(*list));
    std::vector<search::Probe> probes;
    for (size_t i = 0; i < list->size(); ++i)
      probes.push_back(probe_of(list->at(i), "/probes/" + std::to_string(i), s, base_dir, as_family, models));
    search::rest_on_probes(estimated, probes);
  }
  auto out = to_json(estimated.estimate);
  if (!s.plan.warnings.empty()) out["warnings"] = s.plan.warnings;
  return out;
}

}  // namespace

int estimate_command(const Arguments& arguments) {
  CLI::App app{"Predict memory, step time and whether a job fits", "estimate"};
  std::string job_file, in_file, plan_file, host_file, family;
  bool json = false;
  app.add_option("JOB", job_file, "Job file (JSON)");
  app.add_option(
      "--in", in_file,
      "JSON lines of {\"id\", \"job\", \"plan\"[, \"host\", \"interconnect\", \"probes\"]}; - = standard input");
  app.add_option("--plan", plan_file, "Plan file (JSON); without it, one CPU rank of this machine");
  app.add_option("--host", host_file, "Host file: the \"host\" object of an offer, or {\"host\", \"interconnect\"}");
  app.add_option("--as", family, "Read the model as this family, whatever its config.json says");
  app.add_flag("--json", json, "Print the record instead of a table");
  if (const auto status = parse(app, arguments)) return *status;
  if (in_file.empty() == job_file.empty())
    throw Error("usage", "estimate",
                in_file.empty() ? "a job file or --in is missing" : "a job file and --in exclude each other",
                "see shardfit estimate --help");
  if (!in_file.empty()) {
    if (!plan_file.empty() || !host_file.empty())
      throw Error("usage", "estimate", "--plan and --host are for a single job",
                  "put \"plan\" and \"host\" into each line");
    search::ModelCache models;
    return answer_lines(in_file, [&](const Json& line, const std::string& base_dir) {
      return estimate_record(line, base_dir, family, models);
    });
  }
  const JobSetting s = load_job_setting(job_file, plan_file, host_file, family);
  auto estimated = search::estimate(s.setting());
  estimated.estimate.assumed.insert(estimated.estimate.assumed.begin(), s.assumed.begin(), s.assumed.end());
  const auto advice = estimated.estimate.fits == "yes" ? std::vector<memory::Advice>{} : advice_for(s);
  auto record = to_json(estimated.estimate);
  if (!advice.empty()) record["advice"] = advice_json(advice);
  const auto hints = estimated.estimate.fits == "no" ? hints_for(s) : std::vector<memory::Advice>{};
  if (!hints.empty()) record["hints"] = advice_json(hints);
  const std::string text = json ? record.dump(2) + "\n" : estimate_table(s, estimated) + advice_table(advice) + hints_table(hints);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitDone;
}

}  // namespace shardfit::cli
