#include "selector/cli/commands.hpp"

namespace shardfit::cli {

// One line a command: declaration here, entry below, code in selector/cli/<name>_command.cpp.

int estimate_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int policy_command(const Arguments& arguments);

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"estimate", "predict memory, step time and whether a job fits", estimate_command},
      {"plan", "decide where a job should run and how it should be sharded", plan_command},
      {"policy", "publish or check the tables by which slurmctld keeps jobs inside their pins", policy_command},
  };
  return table;
}

}  // namespace shardfit::cli
