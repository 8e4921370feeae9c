#include "selector/cli/commands.hpp"

namespace shardfit::cli {

// One line a command: declaration here, entry below, code in selector/cli/<name>_command.cpp.

int policy_command(const Arguments& arguments);

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"policy", "publish or check the tables by which slurmctld keeps jobs inside their pins", policy_command},
  };
  return table;
}

}  // namespace shardfit::cli
