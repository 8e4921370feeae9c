// The decision on its way into the job: files named by their content, options of sbatch, variables.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pricing/offers.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"

namespace shardfit::handoff {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Files {
  std::string folder;  // <work_dir>/.shardfit/<sha256>, or <plan_dir>/<sha256>
  std::string plan_sha256;
  Pairs environment;  // SHARDFIT_PLAN, SHARDFIT_JOB, ... : absolute paths, and SHARDFIT_PLAN_SHA256
};

// Writes plan.json, job.json, deepspeed.json, accelerate_fsdp.yaml, torchtitan.args, torchtitan.toml and decision.json
// into a folder named by the SHA-256 of plan.json (with a suffix where another job has that plan already: a folder
// never changes). Paths in job.json become absolute. `plan_dir` = "": below `work_dir`/.shardfit. Throws
// Error{file_unwritable}.
Files write_files(const job::Job& job, const job::Plan& plan, const std::string& decision_json,
                  const std::string& work_dir, const std::string& plan_dir);

struct Request {
  std::string partition;
  std::vector<std::string> features;
  std::string slurm_gpu_type;              // "" = the nodes' GPUs have no type
  double run_seconds_high = 0;             // upper end of the prediction, start included; 0 = not predicted
  std::optional<double> max_seconds;       // the partition's MaxTime
  double node_ram_gib = 0, node_cpus = 0;  // what a node has; 0 = not known
  std::int64_t node_gpus = 0;              // GPUs (or CPU ranks) a whole node has
  std::int64_t host_bytes = 0;             // predicted host memory a node
};

struct SbatchOptions {
  Pairs set;       // in any case
  Pairs defaults;  // where the user said nothing: time
};
SbatchOptions sbatch_options(const job::Plan& plan, const Request& request);

// Seconds as Slurm takes them, whole minutes upwards: "1-02:30:00" or "00:17:00".
std::string slurm_time(double seconds);

}  // namespace shardfit::handoff
