// One attempt of a Slurm job as it ended: a line of the jobcomp spool, or a row of sacct.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pricing/inventory.hpp"

namespace shardfit::pricing {

struct Attempt {
  std::string cluster;
  std::int64_t job_id = 0;
  std::optional<std::int64_t> array_job_id, array_task_id, het_job_id;
  std::int64_t restart = 0;
  std::string state;                            // COMPLETED, FAILED, TIMEOUT, REQUEUED, ...
  std::int64_t submit = 0, start = 0, end = 0;  // Unix seconds; 0 = not known
  std::string partition, user, account, name, work_dir;
  std::string nodes;  // Slurm's list; "" = none was ever allocated
  std::int64_t total_nodes = 0, total_cpus = 0;
  std::vector<Gres> gpus;         // as allocated over all nodes
  std::vector<std::string> pins;  // of job_submit's record
  std::string plan_sha256;
  std::map<std::string, std::string> environment;  // of spank_job_env

  // It held machines. Without nodes or time nothing is charged, whatever gres_used says: it may be left over from an
  // earlier attempt.
  bool ran() const { return !nodes.empty() && total_nodes > 0 && start > 0 && (end > start || ended_at_once()); }
  // Started and ended within one second of Slurm's clock, as only a job that ran ends (a pending one that is cancelled
  // also shows a start).
  bool ended_at_once() const;
};

// A spool line of version 1. Throws Error{bad_json | unknown_version | wrong_type | missing_key}.
Attempt parse_spool_line(std::string_view line, const std::string& where);
// What `sacct -P` printed, header first; `cluster` where it has no such column. Steps and jobs that have not ended are
// left out.
std::vector<Attempt> parse_sacct(std::string_view text, const std::string& cluster);
// The columns parse_sacct wants, for sacct --format.
const char* sacct_columns();

// "cpu=8,gres/gpu=8,gres/gpu:h100=8", "gpu:h100:4", "gres:gpu:h100:4(IDX:0-3)": types win over the untyped total.
std::vector<Gres> parse_gpu_tres(std::string_view text);

}  // namespace shardfit::pricing
