// shardfit ledger import [FILE] [--sacct].
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pricing/ledger.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "selector/cli/cluster_offers.hpp"
#include "selector/cli/parse.hpp"

namespace shardfit::cli {
namespace {

constexpr std::size_t kLargestSpool = std::size_t{4} << 30;
constexpr int kSacctSeconds = 120;

// Runs sacct and returns what it printed; killed when it takes longer than kSacctSeconds.
std::string run_sacct(const std::string& since) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0)
    throw Error("sacct", "--sacct", "no pipe could be made", "", kExitFailed);
  const std::string format = std::string("--format=") + pricing::sacct_columns(), start = "--starttime=" + since;
  const pid_t child = ::fork();
  if (child < 0) throw Error("sacct", "--sacct", "no process could be started", "", kExitFailed);
  if (child == 0) {
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    const char* const argv[] = {"sacct", "-D", "-X", "-P", "-a", start.c_str(), format.c_str(), nullptr};
    ::setenv("SLURM_TIME_FORMAT", "%Y-%m-%dT%H:%M:%S%z", 1);
    ::execvp("sacct", const_cast<char* const*>(argv));
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  std::string text, complaint;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kSacctSeconds);
  bool open[2] = {true, true}, late = false;
  char buffer[65536];
  while ((open[0] || open[1]) && !late) {
    pollfd fds[2] = {{open[0] ? out[0] : -1, POLLIN, 0}, {open[1] ? err[0] : -1, POLLIN, 0}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    late = left <= 0;
    if (late || ::poll(fds, 2, static_cast<int>(left)) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (!fds[i].revents) continue;
      const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) (i == 0 ? text : complaint).append(buffer, static_cast<size_t>(n));
      else if (n == 0 || errno != EINTR) open[i] = false;
    }
  }
  ::close(out[0]);
  ::close(err[0]);
  if (late) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (late)
    throw Error("sacct", "--sacct", fmt::format("sacct has not answered within {} s", kSacctSeconds),
                "narrow it with --since", kExitFailed);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    throw Error("sacct", "--sacct", "sacct was not found",
                "install Slurm's client commands, or import the jobcomp spool", kExitFailed);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error("sacct", "--sacct", "sacct failed: " + complaint.substr(0, complaint.find('\n')),
                "it needs slurmdbd; without one, import the jobcomp spool", kExitFailed);
  return text;
}

}  // namespace

int ledger_command(const Arguments& arguments) {
  CLI::App app{"Book finished jobs: what they cost, beside what was predicted", "ledger"};
  app.require_subcommand(1);
  std::string file, since = "now-30days";
  bool sacct = false, again = false, json = false;
  auto* i = app.add_subcommand("import", "Book the attempts of the jobcomp spool; booking them again changes nothing");
  i->add_option("FILE", file, "The spool (default: the site file's); with --sacct: what sacct -P printed");
  i->add_flag("--sacct", sacct, "Take the attempts from sacct instead of the spool");
  i->add_option("--since", since, "With --sacct: from when on, as sacct's --starttime (default: now-30days)");
  i->add_flag("--again", again, "Book known attempts anew, by today's site file and price book");
  i->add_flag("--json", json, "Print the counts as JSON");
  if (const auto status = parse(app, arguments)) return *status;

  const auto site = pricing::read_site();
  const auto types = gpu_types();
  const auto book = pricing::Book::open(site.state_dir, &types);
  const auto rates = pricing::Rates::load(site.state_dir);
  pricing::LedgerImport read;
  std::vector<pricing::Attempt> attempts;
  if (sacct) {
    attempts = pricing::parse_sacct(file.empty() ? run_sacct(since) : read_file(file), site.cluster);
  } else {
    if (file.empty()) file = site.spool;
    attempts = pricing::read_spool(read_file(file, kLargestSpool), read);
  }
  pricing::Ledger ledger(site.state_dir, true);
  const auto done = ledger.book(attempts, {site, book, types, rates}, again);
  for (const auto& line : read.unreadable)
    std::fprintf(stderr, "shardfit: %s: %s; the line was left out\n", file.c_str(), line.c_str());
  std::string text;
  if (json)
    text = OrderedJson{{"attempts", done.lines},
                       {"booked", done.booked},
                       {"known", done.known},
                       {"unreadable", read.unreadable.size()},
                       {"ledger", ledger.file()}}
               .dump() +
           "\n";
  else
    text =
        fmt::format("{} attempts: {} booked, {} known already{}\n", done.lines, done.booked, done.known,
                    read.unreadable.empty() ? "" : fmt::format("; {} lines could not be read", read.unreadable.size()));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return read.unreadable.empty() ? kExitDone : kExitFailed;
}

}  // namespace shardfit::cli
