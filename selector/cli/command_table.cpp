#include "selector/cli/commands.hpp"

namespace shardfit::cli {

// One line a command: declaration here, entry below, code in selector/cli/<name>_command.cpp.

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
  };
  return table;
}

}  // namespace shardfit::cli
