// What the two halves of the plugin share: SPANK hooks collect the request, the cli_filter hook acts on it. One file
// loaded under two names is one instance, so this state is one as well.
#pragma once
#include <string>

#include "plugin/spank/protocol.hpp"
#include "plugin/spank/request.hpp"

namespace shardfit::spank {

struct State {
  Request request;
  Settings settings;
  bool client = false;   // sbatch, salloc or srun, and not srun inside an allocation
  bool several = false;  // a heterogeneous job by its command line (" : ")
  bool decided = false;  // the cli_filter hook ran
  Pairs env, control;    // for the job
};

State& state();

// Prints "sbatch: error: shardfit: TEXT" and ends the command with `status`: nothing is submitted, whatever the
// plugin's line in plugstack.conf says ("optional" would ignore a failed hook).
[[noreturn]] void refuse(const std::string& text, int status = 1);

}  // namespace shardfit::spank
