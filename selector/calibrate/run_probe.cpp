// Runs shardfit-train --probe rates as a process: the selector links no LibTorch.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/calibrate/calibration.hpp"

extern char** environ;

namespace shardfit::calibrate {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostOutput = 16 << 20;

std::string find_program(const std::string& stated) {
  if (!stated.empty()) return stated;
  if (const char* chosen = std::getenv("SHARDFIT_TRAIN"); chosen && *chosen) return chosen;
  std::error_code status;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", status);
  if (!status) {
    const auto beside = self.parent_path() / "shardfit-train";
    if (access(beside.c_str(), X_OK) == 0) return beside.string();
  }
  if (const char* path = std::getenv("PATH"))
    for (const std::string& folder : split(path, ':')) {
      const auto candidate = std::filesystem::path(folder.empty() ? "." : folder) / "shardfit-train";
      if (access(candidate.c_str(), X_OK) == 0) return candidate.string();
    }
  throw Error("probe_missing", "", "shardfit-train was not found beside this program or on PATH",
              "build the runtime (it needs LibTorch) or set SHARDFIT_TRAIN", kExitFailed);
}

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw Error("probe_failed", "", fmt::format("no pipe: {}", std::strerror(errno)), "", kExitFailed);
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
};

// The child leads a process group of its own, so that its ranks end with it.
struct Child {
  pid_t pid = -1;
  ~Child() { end(); }
  void end() {
    if (pid < 0) return;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
};

std::string last_line(const std::string& text) {
  std::string last;
  for (const std::string& line : split(text, '\n'))
    if (!trim(line).empty()) last = trim(line);
  return last;
}

}  // namespace

BusyRates run_probe(const ProbeOptions& options) {
  const std::string program = find_program(options.program);
  std::vector<std::string> words = {program,
                                    "--probe",
                                    "rates",
                                    "--ranks",
                                    std::to_string(options.ranks),
                                    "--threads",
                                    std::to_string(options.threads),
                                    "--type",
                                    options.type};
  if (options.quick) words.push_back("--quick");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  Pipe out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  Child child;
  const int status = posix_spawn(&child.pid, program.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (status != 0) {
    child.pid = -1;
    throw Error("probe_missing", "", fmt::format("{} cannot be run: {}", program, std::strerror(status)),
                "set SHARDFIT_TRAIN", kExitFailed);
  }
  close(std::exchange(out.write, -1));
  close(std::exchange(err.write, -1));

  const auto deadline = Clock::now() + std::chrono::duration<double>(options.deadline_seconds);
  const auto remaining = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  };
  const auto too_slow = [&] {
    return Error("probe_timeout", "",
                 fmt::format("{} did not finish within {}", program, format_duration(options.deadline_seconds)),
                 "close other programs, or allow more with --deadline", kExitFailed);
  };
  std::string text, complaints;
  while (out.read >= 0 || err.read >= 0) {
    const auto left = remaining();
    if (left <= 0) throw too_slow();
    pollfd waiting[2] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
    const int ready = poll(waiting, 2, static_cast<int>(std::min<long long>(left, 1000)));
    if (ready < 0 && errno != EINTR) throw Error("probe_failed", "", std::strerror(errno), "", kExitFailed);
    for (int i = 0; i < 2; ++i) {
      int& end = i == 0 ? out.read : err.read;
      std::string& into = i == 0 ? text : complaints;
      if (ready <= 0 || end < 0 || !(waiting[i].revents & (POLLIN | POLLHUP | POLLERR))) continue;
      char buffer[65536];
      const ssize_t got = read(end, buffer, sizeof buffer);
      if (got > 0) into.append(buffer, static_cast<std::size_t>(got));
      else if (got == 0 || errno != EINTR) close(std::exchange(end, -1));
      if (into.size() > kMostOutput)
        throw Error("probe_failed", "", fmt::format("{} prints without end", program), "check SHARDFIT_TRAIN",
                    kExitFailed);
    }
  }
  int result = 0;
  pid_t waited = 0;
  while ((waited = waitpid(child.pid, &result, WNOHANG)) == 0) {
    if (remaining() <= 0) throw too_slow();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  child.pid = -1;
  if (waited < 0 || !WIFEXITED(result) || WEXITSTATUS(result) != 0) {
    const std::string why = last_line(complaints);
    throw Error("probe_failed", "", fmt::format("{} --probe rates failed{}", program, why.empty() ? "" : ": " + why),
                "run it by hand to see all of its output", kExitFailed);
  }
  // Progress may stand before it: the record is the last line.
  return parse_rates(parse_json(last_line(text), program));
}

}  // namespace shardfit::calibrate
