#include "plugin/inventory/slurm_inventory.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "plugin/spank/child.hpp"
#include "regions/base/error.hpp"
#include "regions/base/shorten.hpp"
#include "regions/base/shorten.hpp"
#include "regions/base/text.hpp"

namespace shardfit::inventory {
namespace {

std::string find_scontrol() {
  const char* path = std::getenv("PATH");
  for (const auto& folder : split(path ? path : "/usr/bin:/usr/local/bin", ':')) {
    const auto candidate = folder + "/scontrol";
    if (!folder.empty() && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw Error("slurm_missing", "", "scontrol was not found in PATH: there is no Slurm here to ask",
              "give offers by --offers FILE, or install Slurm's commands", kExitFailed);
}

// Slurm's commands look for a controller by DNS for a minute when their configuration is missing.
void check_configuration() {
  if (const char* named = std::getenv("SLURM_CONF"); named && *named && ::access(named, R_OK) != 0) {
    throw Error("slurm_missing", "SLURM_CONF", std::string(named) + " cannot be read: " + std::strerror(errno),
                "name the cluster's slurm.conf", kExitFailed);
  }
}

}  // namespace

pricing::Inventory slurm_inventory(const Query& query) {
  check_configuration();
  constexpr std::size_t kLimit = std::size_t{256} << 20;
  const auto result = spank::run_child({find_scontrol(), "-a", "-o"}, {}, query.deadline_seconds,
                                       "show node\nshow partition\nshow reservation\n", kLimit);
  using End = spank::ChildResult::End;
  const auto said = trim(result.err).empty() ? "" : ": " + shorten(trim(result.err), 200);
  if (result.end == End::kTimedOut) {
    throw Error("slurm_timeout", "", "scontrol did not answer within " + format_duration(query.deadline_seconds) + said,
                "is slurmctld up? scontrol ping tells", kExitFailed);
  }
  // scontrol's own exit status is that of its last question only, and "no reservation" may count as a failure: nodes
  // decide.
  auto inventory = parse_scontrol(result.out, query);
  if (result.end != End::kExited || result.output_cut || inventory.nodes.empty() || inventory.partitions.empty()) {
    throw Error("slurm_unreachable", "", "scontrol told nothing of the cluster" + said,
                "is slurmctld up? scontrol ping tells", kExitFailed);
  }
  return inventory;
}

std::future<pricing::Inventory> start_slurm_inventory(const Query& query) {
  return std::async(std::launch::async, [query] { return slurm_inventory(query); });
}

}  // namespace shardfit::inventory
