// A decision for one job on the cluster at hand, and what sbatch is to be told. Shared by `shardfit slurm-decide`,
// which the Slurm plugin runs, and by `shardfit submit`.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plugin/handoff/handoff.hpp"

namespace shardfit::cli {

struct SlurmRequest {
  std::string job_file;
  std::vector<std::string> pins, gpus;    // pins beyond the job's own and the policy's
  std::string deadline, max_cost;         // "" = not given
  std::int64_t max_nodes = 0;             // 0 = not given
  std::string account, qos, reservation;  // as sbatch would use them
  std::string user_time;                  // the user's own --time; "" = none
  std::string work_dir;                   // "" = the current folder
  std::string option_prefix = "--hw-";    // how errors name the options: "--hw-deadline"
  bool write = true;                      // false: decide only
};

struct SlurmAnswer {
  std::string text;  // for people: the decision, warnings
  bool chosen = false;
  std::string one_line;  // why nothing fits, where it does
  handoff::SbatchOptions options;
  handoff::Pairs environment;  // SHARDFIT_PLAN, ...
  handoff::Pairs control;      // SHARDFIT_PINS: the job's own pins, joined by '&'
};

// Throws Error for bad input (exit status 2) and for a cluster that cannot be asked (1).
SlurmAnswer decide_for_slurm(const SlurmRequest& request);

}  // namespace shardfit::cli
