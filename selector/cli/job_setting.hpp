// One job on one plan as the commands estimate and explain read it: files, model, device, host, the machine's own
// rates.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pricing/offers.hpp"
#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/search/estimator.hpp"
#include "selector/time/calibration.hpp"

namespace shardfit::cli {

struct JobSetting {
  job::Job job;
  job::Plan plan;
  std::shared_ptr<const model::Model> model;
  const hardware::Device* device = nullptr;
  std::optional<pricing::Host> host;
  std::optional<pricing::Interconnect> interconnect;
  const timing::Calibration* calibration = nullptr;
  std::vector<std::string> assumed;  // "plan=one rank on this machine's CPU (not stated)"

  search::Setting setting() const;
};

// plan_file "" = one CPU rank with micro batch 1. host_file "": unknown; else an offer's "host" object, or an object
// with "host" and "interconnect". Every Error names its file. Warnings of the plan go to standard error.
JobSetting load_job_setting(const std::string& job_file, const std::string& plan_file, const std::string& host_file,
                            const std::string& as_family);

// What `shardfit calibrate` stored on this machine, read once; nullptr = nothing. Only the device "cpu" needs it.
const timing::Calibration* stored_calibration();

// The error of a model that cannot be read, told as one of the key that names it.
[[noreturn]] void rethrow_model_error(const Error& error, const std::string& where);

}  // namespace shardfit::cli
