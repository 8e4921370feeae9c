#include "runtime/train/signals.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "regions/base/error.hpp"

namespace shardfit::train {
namespace {

volatile sig_atomic_t requested = 0;
timespec first_time{};

// One request often arrives twice, from Slurm to the whole step and through the launcher: what comes within a second is the same one.
extern "C" void on_stop(int) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (!requested) {
    requested = 1;
    first_time = now;
  } else if (now.tv_sec - first_time.tv_sec > 1 || (now.tv_sec - first_time.tv_sec == 1 && now.tv_nsec >= first_time.tv_nsec)) {
    ::_exit(kExitFailed);
  }
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGTERM, SIGUSR1, SIGINT}) ::sigaction(signal, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

bool stop_requested() { return requested != 0; }

}  // namespace shardfit::train
