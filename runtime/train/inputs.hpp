// What a run is told: the job file, the plan, and --set on top of either.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/step.hpp"

namespace shardfit::train {

struct Options {
  std::string job;               // file
  std::string plan;              // file; "" = SHARDFIT_PLAN, else planned for this machine
  std::string output;            // "" = the job's
  std::string resume = "auto";   // auto | never | a checkpoint
  std::vector<std::string> set;  // KEY=VALUE
};

struct Inputs {
  job::Job job;  // output filled in, absolute
  job::Plan plan;
  model::Model model;
  std::string model_folder;
  schedule::Step step;
  std::vector<std::string> notes;  // said once at the start
};

// Throws Error (exit 2) naming file, key, value and remedy. `ranks`: how many this run has; the plan must be of as
// many.
Inputs read_inputs(const Options& options, int ranks);

// KEY=VALUE on a JSON object: dots go into objects; VALUE is JSON, else a string.
void apply_setting(nlohmann::json& object, const std::string& key, const std::string& value);

// Throws Error{out_of_memory, exit 12} where the schedule's buffers exceed what the plan or the host gives a rank;
// names the largest term and a plan that would fit.
void check_memory(const Inputs& inputs, int local_ranks);

}  // namespace shardfit::train
