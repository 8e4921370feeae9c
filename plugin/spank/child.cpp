#include "plugin/spank/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

extern char** environ;

namespace shardfit::spank {
namespace {

double monotonic_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Pipe {
  int read = -1, write = -1;
  bool open() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return false;
    read = fds[0];
    write = fds[1];
    return true;
  }
  void close_read() { close_one(read); }
  void close_write() { close_one(write); }
  ~Pipe() { close_read(), close_write(); }

 private:
  static void close_one(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
};

// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(char* const* argv, char* const* envp, int in, int out, int err, int report, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the user interrupts sbatch: the decision ends with it
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int s : {SIGPIPE, SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGCHLD, SIGTSTP}) ::signal(s, SIG_DFL);
  if (in < 0) in = ::open("/dev/null", O_RDONLY);
  if (in < 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(127);
  for (int fd = 3; fd < 256; ++fd) {
    if (fd != report) ::close(fd);
  }
  ::execve(argv[0], argv, envp);
  const int e = errno;
  if (::write(report, &e, sizeof e) < 0) ::_exit(126);
  ::_exit(127);
}

// False at the end of the stream.
bool drain(int fd, std::string& into, bool& cut, std::size_t limit) {
  char buffer[16384];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (n == 0) return false;
  const auto room = limit - std::min(into.size(), limit);
  if (static_cast<std::size_t>(n) > room) cut = true;
  into.append(buffer, std::min(static_cast<std::size_t>(n), room));
  return true;
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                      double deadline_seconds, const std::string& input, std::size_t output_limit) {
  ChildResult result;
  const double deadline = monotonic_seconds() + deadline_seconds;
  Pipe in, out, err, report;
  if (arguments.empty() || input.size() > kChildInputLimit || !out.open() || !err.open() || !report.open() ||
      (!input.empty() && !in.open())) {
    result.status = arguments.empty() || input.size() > kChildInputLimit ? EINVAL : errno;
    return result;
  }
  if (!input.empty()) {  // fits the pipe's buffer, so this cannot block
    if (::write(in.write, input.data(), input.size()) != static_cast<ssize_t>(input.size())) {
      result.status = errno;
      return result;
    }
    in.close_write();
  }
  std::vector<char*> argv, envp;
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  for (char** e = environ; e && *e; ++e) {
    const char* equals = std::strchr(*e, '=');
    const auto length = equals ? static_cast<std::size_t>(equals - *e) + 1 : 0;
    const bool replaced = std::any_of(environment.begin(), environment.end(), [&](const std::string& n) {
      return length && n.compare(0, length, *e, length) == 0;
    });
    if (!replaced) envp.push_back(*e);
  }
  for (const auto& e : environment) envp.push_back(const_cast<char*>(e.c_str()));
  envp.push_back(nullptr);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    result.status = errno;
    return result;
  }
  if (pid == 0) become(argv.data(), envp.data(), in.read, out.write, err.write, report.write, parent);
  ::setpgid(pid, pid);
  in.close_read(), out.close_write(), err.close_write(), report.close_write();

  int start_error = 0;
  bool timed_out = false, out_open = true, err_open = true, report_open = true;
  while (out_open || err_open || report_open) {
    const double left = deadline - monotonic_seconds();
    if (left <= 0) {
      timed_out = true;
      break;
    }
    pollfd fds[3] = {{out_open ? out.read : -1, POLLIN, 0},
                     {err_open ? err.read : -1, POLLIN, 0},
                     {report_open ? report.read : -1, POLLIN, 0}};
    const int n = ::poll(fds, 3, static_cast<int>(std::min(left, 3600.0) * 1000) + 1);
    if (n <= 0) continue;
    if (fds[0].revents) out_open = drain(out.read, result.out, result.output_cut, output_limit);
    if (fds[1].revents) err_open = drain(err.read, result.err, result.output_cut, output_limit);
    if (fds[2].revents) {
      if (::read(report.read, &start_error, sizeof start_error) != sizeof start_error) start_error = 0;
      report_open = false;
    }
  }
  int status = 0;
  pid_t reaped = 0;
  while (!timed_out && (reaped = ::waitpid(pid, &status, WNOHANG)) == 0) {
    timed_out = monotonic_seconds() > deadline;
    const timespec pause{0, 200'000};
    ::nanosleep(&pause, nullptr);
  }
  if (timed_out) {
    ::kill(-pid, SIGKILL);
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    result.end = ChildResult::End::kTimedOut;
  } else if (start_error != 0) {
    result.status = start_error;
  } else if (reaped < 0) {  // the caller ignores SIGCHLD, so the status is lost: what it wrote has to do
    result.end = ChildResult::End::kExited;
  } else if (WIFSIGNALED(status)) {
    result.end = ChildResult::End::kSignalled;
    result.status = WTERMSIG(status);
  } else {
    result.end = ChildResult::End::kExited;
    result.status = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace shardfit::spank
