// The cluster as Slurm knows it now: partitions, nodes, GPUs, limits, reservations, read from scontrol (which works
// without slurmdbd and without the libraries of one Slurm release). Measured on the test cluster: about 10 ms for all
// three questions in one process.
#pragma once
#include <future>
#include <string>
#include <string_view>

#include "pricing/inventory.hpp"

namespace shardfit::inventory {

struct Query {
  std::string cluster;  // name for Inventory::cluster
  std::string
      reservation;  // nodes outside it cannot be used, and its own nodes can; "" = reserved nodes cannot be used
  double deadline_seconds = 2;
};

// Throws Error{slurm_missing | slurm_unreachable | slurm_timeout | unknown_reservation} (exit status 1, the last 2).
pricing::Inventory slurm_inventory(const Query& query);
// The same in the background, for callers with other work to do meanwhile; get() throws what slurm_inventory would.
std::future<pricing::Inventory> start_slurm_inventory(const Query& query);

// What `scontrol -a -o` printed for "show node", "show partition" and "show reservation", in any order.
pricing::Inventory parse_scontrol(std::string_view text, const Query& query);

// "h[1-3,5],x" -> h1 h2 h3 h5 x; zeros in front are kept ("n[08-10]"). Throws Error{bad_hostlist}; at most 100,000
// names.
std::vector<std::string> expand_hostlist(std::string_view text);

// "" when a node in this state ("IDLE+DRAIN", "MIXED*", "PLANNED") takes new jobs, else why not, in lower case.
std::string why_not_usable(std::string_view state);

}  // namespace shardfit::inventory
