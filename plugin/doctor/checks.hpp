// Is shardfit installed in this Slurm so that it works? One finding a check, each with what to do.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::doctor {

enum class Level { kGood, kWarning, kBad };

struct Finding {
  std::string check;  // "plugstack", "cli_filter", "job_submit", "jobcomp", "policy", "site", "partitions", "slurm"
  Level level = Level::kGood;
  std::string message, remedy;  // remedy "" where all is well
};

// Reads the site file, `scontrol show config`, plugstack.conf, the Lua files beside slurm.conf and the published
// tables; changes nothing. Every wait has a deadline. Never throws: what cannot be read is a finding.
std::vector<Finding> examine();

// "KEY = value" lines of `scontrol show config`.
std::map<std::string, std::string> parse_config(std::string_view text);

// Checks of plugstack.conf's text ("include" lines are followed by the caller): the plugin's line, its file, program
// and version.
std::vector<Finding> check_plugstack(const std::string& text, const std::string& file,
                                     const std::string& slurm_version);

}  // namespace shardfit::doctor
