// SPANK half: registers the options and passes names and values to the job. In slurmd and slurmstepd it registers
// options (so that nothing warns about them) and does nothing else.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

// spank.h declares the hooks outside its own extern "C".
extern "C" {
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
extern const char plugin_name[], plugin_type[];
extern const unsigned int plugin_version;
}

#include "plugin/spank/state.hpp"

#define EXPORTED __attribute__((visibility("default")))

namespace shardfit::spank {

State& state() {
  static State s;
  return s;
}

void refuse(const std::string& text, int status) {
  slurm_error("shardfit: %s", text.c_str());
  std::fflush(stdout);
  std::fflush(stderr);
  std::exit(status);
}

namespace {

int take_option(int index, const char* value, int remote) noexcept {
  if (remote) return 0;
  try {
    if (index < 0 || index >= kOptionCount || !value) return 0;
    const std::string text = value;
    if (index == kHw && text != "auto" && text != "show" && text != "off") {
      slurm_error("shardfit: --hw=%s is not known: auto (choose and submit), show (choose and print), off", value);
      return -1;
    }
    auto& request = state().request;
    const auto i = static_cast<std::size_t>(index);
    request.values[i] = text;
    ++request.given[i];
    return 0;
  } catch (...) {
    return -1;
  }
}

// What the command's own environment says (SBATCH_HW_JOB, ...) goes the way of Slurm's own option variables: after
// #SBATCH lines, before the command line. Those that an enclosing job left behind are dropped first: a job inside a job
// was not asked for.
void take_environment() {
  const bool inside_job = std::getenv("SLURM_JOB_ID") != nullptr;
  const char* program = program_invocation_short_name;
  const std::string prefix = std::strcmp(program, "salloc") == 0 ? "SALLOC_"
                             : std::strcmp(program, "srun") == 0 ? "SLURM_"
                                                                 : "SBATCH_";
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    std::string name = std::string("SLURM_SPANK__SLURM_SPANK_OPTION_shardfit_") + kOptionTexts[i].name;
    for (auto& c : name) {
      if (c == '-') c = '_';
    }
    if (inside_job) ::unsetenv(name.c_str());
    const char* value = std::getenv((prefix + kOptionTexts[i].variable).c_str());
    if (value && *value && !std::getenv(name.c_str())) ::setenv(name.c_str(), value, 1);
    if (std::getenv(name.c_str())) state().request.from_env[i] = 1;
  }
}

// A lone ":" on the command line separates the components of a heterogeneous job.
bool command_line_has_components() {
  std::FILE* file = std::fopen("/proc/self/cmdline", "re");
  if (!file) return false;
  std::string text;
  char buffer[4096];
  for (std::size_t n; text.size() < (1u << 20) && (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;)
    text.append(buffer, n);
  std::fclose(file);
  return text.find(std::string("\0:\0", 3)) != std::string::npos;
}

// What an enclosing job's decision handed to prologs and job_submit is not this job's.
void drop_inherited() {
  if (!std::getenv("SLURM_JOB_ID")) return;
  std::vector<std::string> names;
  for (char** e = environ; e && *e; ++e) {
    if (std::strncmp(*e, "SLURM_SPANK_SHARDFIT_", 21) == 0) names.emplace_back(*e, std::strcspn(*e, "="));
  }
  for (const auto& name : names) ::unsetenv(name.c_str());
}

bool in_client() {
  const auto context = spank_context();
  return context == S_CTX_ALLOCATOR || context == S_CTX_LOCAL;
}

bool register_options(spank_t spank) {
  for (int i = 0; i < kOptionCount; ++i) {
    const auto& text = kOptionTexts[static_cast<std::size_t>(i)];
    spank_option o{const_cast<char*>(text.name),
                   const_cast<char*>(text.argument),
                   const_cast<char*>(text.usage),
                   1,
                   i,
                   take_option};
    if (spank_option_register(spank, &o) != ESPANK_SUCCESS) return false;
  }
  return true;
}

}  // namespace
}  // namespace shardfit::spank

using namespace shardfit::spank;

extern "C" {

EXPORTED extern const char plugin_name[] = "shardfit";
EXPORTED extern const char plugin_type[] = "spank";
EXPORTED extern const unsigned int plugin_version = SLURM_VERSION_NUMBER;

EXPORTED int slurm_spank_init(spank_t spank, int count, char** words) noexcept {
  const auto context = spank_context();
  if (context != S_CTX_ALLOCATOR && context != S_CTX_LOCAL && context != S_CTX_REMOTE) return 0;
  if (!register_options(spank)) return context == S_CTX_REMOTE ? 0 : -1;
  if (context == S_CTX_REMOTE) return 0;
  try {
    auto& s = state();
    s.settings = parse_settings(count, words);
    if (!s.settings.unknown.empty())
      slurm_error(
          "shardfit: plugstack.conf: \"%s\" is not understood; known are shardfit=PATH conf=PATH timeout=SECONDS",
          s.settings.unknown.c_str());
    take_environment();
    if (context == S_CTX_ALLOCATOR) drop_inherited();
    s.client = !(spank_context() == S_CTX_LOCAL && std::getenv("SLURM_JOB_ID"));
    s.several = command_line_has_components();
  } catch (...) {
  }
  return 0;
}

EXPORTED int slurm_spank_init_post_opt(spank_t spank, int, char**) noexcept {
  if (!in_client()) return 0;
  try {
    const auto& s = state();
    if (!s.client || s.request.mode() == Mode::kOff) return 0;
    if (!s.decided) {
      refuse(
          "--hw needs CliFilterPlugins=shardfit in slurm.conf (and cli_filter_shardfit.so, a link to spank_shardfit.so, in a PluginDir); nothing was "
          "submitted; submit without --hw, or ask the administrator (shardfit doctor tells more)");
    }
    for (const auto* pairs : {&s.env, &s.control}) {
      for (const auto& [name, value] : *pairs) {
        if (spank_job_control_setenv(spank, name.c_str(), value.c_str(), 1) != ESPANK_SUCCESS)
          refuse(name + " could not be passed to the job; nothing was submitted");
      }
    }
    return 0;
  } catch (...) {
    refuse("out of memory; nothing was submitted");
  }
}

}  // extern "C"
