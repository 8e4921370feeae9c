#include "selector/cli/commands.hpp"

namespace shardfit::cli {

// One line a command: declaration here, entry below, code in selector/cli/<name>_command.cpp.

int calibrate_command(const Arguments& arguments);
int estimate_command(const Arguments& arguments);
int explain_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int policy_command(const Arguments& arguments);
int slurm_decide_command(const Arguments& arguments);
int submit_command(const Arguments& arguments);
int offers_command(const Arguments& arguments);
int prices_command(const Arguments& arguments);
int regions_command(const Arguments& arguments);
int ledger_command(const Arguments& arguments);
int report_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"calibrate", "measure this machine's CPUs, by which the device \"cpu\" is predicted", calibrate_command},
      {"estimate", "predict memory, step time and whether a job fits", estimate_command},
      {"explain", "show where memory and time of a job go over one step", explain_command},
      {"plan", "decide where a job should run and how it should be sharded", plan_command},
      {"policy", "publish or check the tables by which slurmctld keeps jobs inside their pins", policy_command},
      {"slurm-decide", "decide for a submission (run by the Slurm plugin)", slurm_decide_command},
      {"submit", "decide and submit by sbatch, without the Slurm plugin", submit_command},
      {"offers", "what the cluster offers now, with prices and regions", offers_command},
      {"prices", "the price book: import, list and check prices", prices_command},
      {"regions", "regions, and whether they satisfy a pin", regions_command},
      {"ledger", "book finished jobs", ledger_command},
      {"report", "what finished jobs cost, predicted beside actual", report_command},
      {"doctor", "check the installation in Slurm", doctor_command},
  };
  return table;
}

}  // namespace shardfit::cli
