// The commands of `shardfit`, one file each. A command builds its own CLI11 parser, so that start-up pays for one only.
#pragma once
#include <string>
#include <vector>

namespace shardfit::cli {

// Everything after the command's name. Returns the exit status; throws Error for main to print.
using Arguments = std::vector<std::string>;

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments& arguments);
};

const std::vector<Command>& commands();  // command_table.cpp

}  // namespace shardfit::cli
