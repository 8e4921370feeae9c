// `shardfit-train --probe rates`: what shardfit calibrate runs.
#pragma once
#include <string>
#include <vector>

namespace shardfit::probe {

// `arguments`: the whole command line, the program's name first. --probe rates [--ranks N] [--threads T] [--type fp32|bf16] [--quick].
// With several ranks it starts them; rank 0 prints the record as one line. Returns the exit status; throws Error for main to print.
int probe_command(const std::vector<std::string>& arguments);

}  // namespace shardfit::probe
