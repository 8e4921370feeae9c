// cli_filter half: before submission it has `shardfit` decide, as the user and within a deadline, and turns the
// decision into options of sbatch, salloc or srun. Whatever goes wrong ends the command with one message; nothing is
// ever submitted undecided.
#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plugin/spank/child.hpp"
#include "plugin/spank/state.hpp"

#define EXPORTED __attribute__((visibility("default")))

// Exported by the library that sbatch, salloc and srun load plugins with; no installed header declares them.
extern "C" {
struct slurm_options;
bool slurm_option_isset(slurm_options* opt, const char* name);
char* slurm_option_get(slurm_options* opt, const char* name);
int slurm_option_set(slurm_options* opt, const char* name, const char* value, bool early);
bool slurm_option_reset(slurm_options* opt, const char* name);
}

namespace shardfit::spank {
namespace {

// Set by the decision, or in conflict with what it sets.
constexpr const char* kReplaced[] = {"partition",        "nodes",
                                     "ntasks",           "ntasks-per-node",
                                     "ntasks-per-gpu",   "ntasks-per-socket",
                                     "ntasks-per-core",  "cpus-per-task",
                                     "cpus-per-gpu",     "gpus",
                                     "gpus-per-node",    "gpus-per-task",
                                     "gpus-per-socket",  "gres",
                                     "tres-per-task",    "mem",
                                     "mem-per-cpu",      "mem-per-gpu",
                                     "mincpus",          "constraint",
                                     "prefer",           "nodelist",
                                     "nodefile",         "sockets-per-node",
                                     "cores-per-socket", "threads-per-core",
                                     "extra-node-info",  "use-min-nodes"};

std::string option(slurm_options* opt, const char* name) {
  if (!slurm_option_isset(opt, name)) return "";
  const char* value = slurm_option_get(opt, name);  // Slurm's allocator; this process is about to end or to submit
  return value ? value : "";
}

std::string own_path() {
  Dl_info info{};
  char resolved[PATH_MAX];
  if (::dladdr(reinterpret_cast<const void*>(&own_path), &info) == 0 || !info.dli_fname) return "";
  return ::realpath(info.dli_fname, resolved) ? resolved : info.dli_fname;
}

std::string last_line(const std::string& text) {
  auto end = text.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "";
  const auto begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1) + 1)
      .substr(0, 300);
}

std::vector<std::string> command(slurm_options* opt, const std::string& program) {
  const auto& request = state().request;
  std::vector<std::string> words = {program,     "slurm-decide",
                                    "--mode",    request.mode() == Mode::kShow ? "show" : "auto",
                                    "--command", program_invocation_short_name};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--job", request.values[kHwJob]);
  add("--pin", request.values[kHwPin]);
  add("--deadline", request.values[kHwDeadline]);
  add("--max-cost", request.values[kHwMaxCost]);
  add("--gpu", request.values[kHwGpu]);
  add("--max-nodes", request.values[kHwMaxNodes]);
  add("--account", option(opt, "account"));
  add("--qos", option(opt, "qos"));
  add("--reservation", option(opt, "reservation"));
  add("--time", option(opt, "time"));
  add("--chdir", option(opt, "chdir"));
  return words;
}

constexpr const char* kNothing = "; nothing was submitted";

Answer ask(slurm_options* opt) {
  auto& s = state();
  std::string looked;
  const auto program = find_shardfit(s.settings, own_path(), looked);
  if (program.empty())
    refuse("the program shardfit was not found (" + looked + ")" + kNothing +
           "; submit without --hw, or name it by shardfit=PATH in plugstack.conf");
  const double seconds = timeout_in_force(s.settings);
  const auto result = run_child(command(opt, program), {"SHARDFIT_CONF=" + site_file(s.settings)}, seconds);
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g s", seconds);
  const auto hint = last_line(result.err);
  const auto said = hint.empty() ? "" : " (its last words: " + hint + ")";
  Answer answer;
  std::string why;
  switch (result.end) {
    case ChildResult::End::kNotStarted:
      refuse(program + " could not be started: " + std::strerror(result.status) + kNothing + "; submit without --hw");
    case ChildResult::End::kTimedOut:
      refuse(program + " did not decide within " + limit + kNothing +
             "; try again, submit without --hw, or raise decide_timeout_seconds in the site file" + said);
    case ChildResult::End::kSignalled:
      refuse(program + " crashed while deciding: " + strsignal(result.status) + kNothing +
             "; submit without --hw, and report this" + said);
    case ChildResult::End::kExited: break;
  }
  if (result.status != 0) {
    if (result.status > 3 || hint.empty())
      refuse(program + " failed with exit status " + std::to_string(result.status) + kNothing +
             "; submit without --hw, and report this" + said);
    std::fputs(result.err.c_str(), stderr);  // bad input: its own one line says what and how to mend it
    std::fflush(stderr);
    std::exit(result.status);
  }
  if (result.output_cut || !parse_answer(result.out, answer, why))
    refuse(program + ": " + (result.output_cut ? "its answer is too long" : why) + kNothing + said);
  std::fputs(result.err.c_str(), stderr);
  return answer;
}

void set_option(slurm_options* opt, const std::string& name, const std::string& value) {
  if (slurm_option_set(opt, name.c_str(), value.c_str(), false) != 0)
    refuse("Slurm does not take --" + name + "=" + value + kNothing);
}

// --export=NONE and --export=LIST keep the plan's variables out of the job: name them too.
void export_variables(slurm_options* opt, const Pairs& env) {
  for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
  const auto wanted = option(opt, "export");
  if (wanted.empty() || strncasecmp(wanted.c_str(), "ALL", 3) == 0) return;
  std::string list = strcasecmp(wanted.c_str(), "NONE") == 0 || strcasecmp(wanted.c_str(), "NIL") == 0 ? "" : wanted;
  for (const auto& [name, value] : env) list += (list.empty() ? "" : ",") + name;
  set_option(opt, "export", list);
}

void apply(slurm_options* opt, const Answer& answer) {
  std::string replaced;
  for (const char* name : kReplaced) {
    if (!slurm_option_isset(opt, name)) continue;
    replaced += std::string(" --") + name + "=" + option(opt, name);
    slurm_option_reset(opt, name);
  }
  for (const auto& [name, value] : answer.set) set_option(opt, name, value);
  for (const auto& [name, value] : answer.defaults) {
    if (!slurm_option_isset(opt, name.c_str())) set_option(opt, name, value);
  }
  if (!replaced.empty()) std::fprintf(stderr, "shardfit: the decision replaces%s\n", replaced.c_str());
  export_variables(opt, answer.env);
}

void decide(slurm_options* opt, int offset) {
  auto& s = state();
  if (!s.client) return;
  const auto mode = s.request.mode();
  if (mode == Mode::kOff) {
    if (const auto stray = s.request.stray(); !stray.empty())
      refuse("--" + stray + " needs --hw=auto or --hw=show (--hw=off ignores it)" + kNothing);
    return;
  }
  if (s.several || offset > 0)
    refuse(std::string("--hw does not choose for heterogeneous jobs") + kNothing +
           "; submit without --hw, or as single jobs");
  if (s.request.values[kHwJob].empty())
    refuse(std::string("--hw needs --hw-job=FILE, the job to choose for") + kNothing);
  const auto answer = ask(opt);
  std::FILE* to = mode == Mode::kShow ? stdout : stderr;
  std::fputs(answer.text.c_str(), to);
  std::fflush(to);
  if (mode == Mode::kShow || answer.status != 0) {
    std::fflush(stderr);
    std::exit(answer.status);
  }
  apply(opt, answer);
  s.env = answer.env;
  s.control = answer.control;
  s.decided = true;
}

}  // namespace
}  // namespace shardfit::spank

extern "C" {

EXPORTED int cli_filter_p_setup_defaults(slurm_options*, bool) noexcept { return 0; }

EXPORTED int cli_filter_p_pre_submit(slurm_options* opt, int offset) noexcept {
  try {
    shardfit::spank::decide(opt, offset);
    return 0;
  } catch (...) {
    shardfit::spank::refuse("out of memory; nothing was submitted");
  }
}

EXPORTED void cli_filter_p_post_submit(int, std::uint32_t, std::uint32_t) noexcept {}

}  // extern "C"
