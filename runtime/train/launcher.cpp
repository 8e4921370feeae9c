#include "runtime/train/launcher.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "regions/base/error.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/comm/world.hpp"
#include "runtime/train/environment.hpp"

namespace shardfit::train {
namespace {

constexpr int kMostRanks = 1024;
pid_t children[kMostRanks];
volatile sig_atomic_t child_count = 0;

extern "C" void pass_on(int signal) {
  const int kept = errno;
  for (int i = 0; i < child_count; ++i)
    if (children[i] > 0) ::kill(children[i], signal);
  errno = kept;
}

}  // namespace

int launch_ranks(int ranks, const std::vector<std::string>& arguments) {
  if (ranks < 1 || ranks > kMostRanks)
    throw Error("out_of_range", "--ranks", fmt::format("{} ranks; 1 to {} on one machine", ranks, kMostRanks),
                "start ranks on several machines with srun");
  using Clock = std::chrono::steady_clock;
  const auto patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(comm::timeout_from_environment()));
  const auto listening = comm::listen_on_loopback();
  const auto threads = std::to_string(threads_for(ranks));
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  struct sigaction action {};
  action.sa_handler = pass_on;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(signal, &action, nullptr);

  const pid_t launcher = ::getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) {
      const int reason = errno;
      pass_on(SIGKILL);
      throw Error("fork_failed", "", fmt::format("cannot start rank {}: {}", rank, std::strerror(reason)), "",
                  kExitFailed);
    }
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives the launcher
      if (::getppid() != launcher) ::_exit(kExitFailed);
      for (int signal : {SIGTERM, SIGINT, SIGUSR1}) ::signal(signal, SIG_DFL);
      ::setenv("SHARDFIT_LAUNCHED", "1", 1);
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", std::to_string(listening.port).c_str(), 1);
      ::setenv("OMP_NUM_THREADS", threads.c_str(), 0);
      if (rank == 0) ::setenv("SHARDFIT_LISTENING_SOCKET", std::to_string(listening.descriptor).c_str(), 1);
      else ::close(listening.descriptor);
      ::execv("/proc/self/exe", argv.data());
      std::fprintf(stderr, "shardfit-train: cannot execute itself: %s\n", std::strerror(errno));
      ::_exit(kExitFailed);
    }
    children[rank] = child;
    child_count = rank + 1;
  }
  ::close(listening.descriptor);

  // Once a rank has ended, the others find out and end too, each at the latest after a wait of SHARDFIT_TIMEOUT. One
  // that does not (stopped by a debugger, stuck in a system call) is killed.
  std::optional<Clock::time_point> first_end;
  int first_failure = 0;
  for (int left = ranks; left > 0;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, first_end ? WNOHANG : 0);
    if (ended < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (ended == 0) {
      if (Clock::now() - *first_end > patience) {
        for (int rank = 0; rank < ranks; ++rank)
          if (children[rank] > 0) std::fprintf(stderr, "shardfit-train: rank %d does not end: killed\n", rank);
        pass_on(SIGKILL);
        first_end = Clock::now();  // a killed process may still take a moment
      }
      ::usleep(10'000);
      continue;
    }
    if (!first_end) first_end = Clock::now();
    auto* const end = children + ranks;
    auto* const which = std::find(children, end, ended);
    if (which == end) continue;
    *which = 0;
    --left;
    int code = 0;
    if (WIFSIGNALED(status)) {
      code = comm::kExitRankLost;
      std::fprintf(stderr, "shardfit-train: rank %d died of signal %d (%s)\n", static_cast<int>(which - children),
                   WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
      code = WEXITSTATUS(status);
    }
    if (first_failure == 0) first_failure = code;
  }
  return first_failure;
}

}  // namespace shardfit::train
