// `--ranks N`: starts N ranks of this program on this machine and waits for them.
#pragma once
#include <string>
#include <vector>

namespace shardfit::train {

// Executes this program again N times with `arguments`, with torchrun's variables set, and passes SIGTERM, SIGINT and
// SIGUSR1 on. Returns the status of the first rank that failed, 10 where that rank died by a signal; 0 if none did.
// Call it before any tensor operation.
int launch_ranks(int ranks, const std::vector<std::string>& arguments);

}  // namespace shardfit::train
