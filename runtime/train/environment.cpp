#include "runtime/train/environment.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <thread>

#include "regions/base/error.hpp"

namespace shardfit::train {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return std::string(value);
}

std::int64_t number(const char* name, const std::string& text, std::int64_t least, std::int64_t most) {
  char* end = nullptr;
  const auto value = std::strtoll(text.c_str(), &end, 10);
  if (*end || value < least || value > most)
    throw Error("out_of_range", name, fmt::format("\"{}\" is not a whole number from {} to {}", text, least, most),
                "unset it or correct it");
  return value;
}

std::string needed(const char* name, const char* beside) {
  if (auto value = variable(name)) return *value;
  throw Error("missing_key", name, fmt::format("is not set, although {} is", beside),
              "start the ranks with srun, torchrun or --ranks N");
}

constexpr std::int64_t kMostRanks = 1 << 20;

Environment from_torchrun(const char* source) {
  Environment environment{.given = true, .source = source};
  environment.rank = static_cast<int>(number("RANK", needed("RANK", "WORLD_SIZE"), 0, kMostRanks));
  environment.ranks = static_cast<int>(number("WORLD_SIZE", needed("WORLD_SIZE", "RANK"), 1, kMostRanks));
  if (environment.ranks > 1) {
    environment.address = needed("MASTER_ADDR", "RANK");
    environment.port = static_cast<int>(number("MASTER_PORT", needed("MASTER_PORT", "RANK"), 1, 65535));
  }
  if (const auto socket = variable("SHARDFIT_LISTENING_SOCKET"); socket && environment.rank == 0)
    environment.listening_socket = static_cast<int>(number("SHARDFIT_LISTENING_SOCKET", *socket, 3, 1 << 20));
  return environment;
}

bool resolves(const std::string& host) {
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
}

// Where rank 0 listens. Slurm's node names need not be host names: inside one node none is needed, and where the name
// is unknown the address that srun was started from is the batch host's, which is the first node.
std::string srun_address() {
  if (variable("SLURM_STEP_NUM_NODES").value_or("") == "1") return "127.0.0.1";
  const auto name =
      first_host(variable("SLURM_STEP_NODELIST").value_or(variable("SLURM_JOB_NODELIST").value_or("127.0.0.1")));
  const auto launcher = variable("SLURM_LAUNCH_NODE_IPADDR");
  return launcher && !resolves(name) ? *launcher : name;
}

Environment from_srun() {
  Environment environment{.given = true, .source = "srun"};
  environment.rank = static_cast<int>(number("SLURM_PROCID", needed("SLURM_PROCID", "SLURM_STEP_ID"), 0, kMostRanks));
  environment.ranks =
      static_cast<int>(number("SLURM_STEP_NUM_TASKS", needed("SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"), 1, kMostRanks));
  if (environment.ranks == 1) return environment;
  if (const auto address = variable("MASTER_ADDR")) environment.address = *address;
  else environment.address = srun_address();
  if (const auto port = variable("MASTER_PORT")) {
    environment.port = static_cast<int>(number("MASTER_PORT", *port, 1, 65535));
  } else {
    // The same on all ranks, another for each job, step and restart: two runs on one node must not meet. Job numbers
    // repeat between clusters that share a network; the port that this srun listens on does not repeat on its host.
    const auto id = std::strtoll(variable("SLURM_JOB_ID").value_or("0").c_str(), nullptr, 10) * 64 +
                    std::strtoll(variable("SLURM_STEP_ID").value_or("0").c_str(), nullptr, 10) * 8 +
                    std::strtoll(variable("SLURM_RESTART_COUNT").value_or("0").c_str(), nullptr, 10) +
                    std::strtoll(variable("SLURM_STEP_LAUNCHER_PORT").value_or("0").c_str(), nullptr, 10) * 7919;
    environment.port = static_cast<int>(20000 + (id % 10007 + 10007) % 10007);
  }
  return environment;
}

}  // namespace

std::string first_host(const std::string& nodelist) {
  const auto bracket = nodelist.find('['), comma = nodelist.find(',');
  if (bracket == std::string::npos || (comma != std::string::npos && comma < bracket)) return nodelist.substr(0, comma);
  auto end = bracket + 1;
  while (end < nodelist.size() && std::isdigit(static_cast<unsigned char>(nodelist[end]))) ++end;
  return nodelist.substr(0, bracket) + nodelist.substr(bracket + 1, end - bracket - 1);
}

Environment read_environment() {
  if (variable("SHARDFIT_LAUNCHED")) return from_torchrun("launcher");
  const bool torchrun = variable("RANK") && variable("WORLD_SIZE");
  // torchrun under srun: one task a node that starts the ranks itself.
  if (torchrun && variable("TORCHELASTIC_RUN_ID")) return from_torchrun("torchrun");
  if (variable("SLURM_STEP_ID") && variable("SLURM_STEP_NUM_TASKS") && variable("SLURM_PROCID")) return from_srun();
  if (variable("RANK") || variable("WORLD_SIZE")) return from_torchrun("torchrun");
  return {};
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

int threads_for(int ranks_sharing_processors) {
  if (const auto stated = variable("OMP_NUM_THREADS"))
    return static_cast<int>(number("OMP_NUM_THREADS", stated->substr(0, stated->find(',')), 1, 4096));
  return std::max(usable_processors() / std::max(ranks_sharing_processors, 1), 1);
}

}  // namespace shardfit::train
