// The subcommands of shardfit-train besides training itself, one function each; all return the exit status.
#pragma once
#include <string>
#include <vector>

namespace shardfit::cli {

using Arguments = std::vector<std::string>;  // behind the command's name

int run_train(const Arguments& arguments, const std::vector<std::string>& whole_command_line);
int run_verify(const Arguments& arguments);
int run_export(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_logits(const Arguments& arguments);
int run_probe(const Arguments& arguments, const std::vector<std::string>& whole_command_line);

}  // namespace shardfit::cli
