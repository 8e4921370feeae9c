// Which rank of how many this process is, and where rank 0 is found: from srun, else from torchrun's names, else from
// the launcher.
#pragma once
#include <cstdint>
#include <string>

namespace shardfit::train {

struct Environment {
  int rank = 0, ranks = 1;
  std::string address = "127.0.0.1";
  int port = 0;
  int listening_socket = -1;     // the launcher's, for rank 0
  bool given = false;            // false: neither srun nor torchrun nor the launcher started this process
  std::string source = "alone";  // "srun" | "torchrun" | "launcher" | "alone"
};

// Throws Error{missing_key | out_of_range} naming the variable.
Environment read_environment();

// First host of a Slurm node list: "n[03-05,9],m1" -> "n03".
std::string first_host(const std::string& nodelist);

// Threads for each rank: OMP_NUM_THREADS, else the processors this process may use, divided by the ranks that share
// them.
int threads_for(int ranks_sharing_processors);
int usable_processors();

}  // namespace shardfit::train
