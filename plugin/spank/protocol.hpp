// What `shardfit slurm-decide` answers, line by line, so that the plugin needs no JSON:
//   shardfit-decide 1            first line
//   say TEXT                     for the user
//   set OPTION VALUE             option of sbatch (long name), replacing the user's
//   default OPTION VALUE         the same, only if the user did not set it
//   env NAME VALUE               into the job's environment and the job's SPANK environment; NAME begins with SHARDFIT_
//   control NAME VALUE           into the job's SPANK environment only
//   end STATUS                   last line: exit status of the decision (0 chosen, 3 nothing fits)
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace shardfit::spank {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Answer {
  std::string text;  // the "say" lines
  Pairs set, defaults, env, control;
  int status = 0;
};

// False, with `why`, for anything but a complete answer in known words.
bool parse_answer(const std::string& output, Answer& answer, std::string& why);

}  // namespace shardfit::spank
