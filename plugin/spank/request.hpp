// What the user asked for by --hw and its companions, where the program `shardfit` is, and how long it may take.
#pragma once
#include <array>
#include <string>
#include <vector>

namespace shardfit::spank {

enum OptionIndex { kHw, kHwJob, kHwPin, kHwDeadline, kHwMaxCost, kHwGpu, kHwMaxNodes, kOptionCount };

struct OptionText {
  const char* name;      // as on the command line, without dashes
  const char* argument;  // what its value is called in --help
  const char* usage;
  const char* variable;  // end of the environment variable's name: SBATCH_<variable>
};
extern const std::array<OptionText, kOptionCount> kOptionTexts;

enum class Mode { kOff, kAuto, kShow };

struct Request {
  std::array<std::string, kOptionCount> values;
  std::array<int, kOptionCount> given{};     // how often the option came, environment included
  std::array<int, kOptionCount> from_env{};  // of these, from the environment

  Mode mode() const;
  // An option that makes no sense without --hw: its name, or "" when all is well.
  std::string stray() const;
};

// Arguments of the plugin's line in plugstack.conf.
struct Settings {
  std::string shardfit;        // shardfit=PATH
  std::string conf;            // conf=PATH, the site file
  double timeout_seconds = 0;  // timeout=SECONDS; 0 = from the site file
  std::string unknown;         // the first word not understood
};
Settings parse_settings(int count, char* const* words);

// decide_timeout_seconds of the site file, found without a JSON parser (// comments are skipped); 3 where it says
// nothing.
double decide_timeout(const std::string& conf_text);
// The site file in force: SHARDFIT_CONF, else the plugin's argument, else /etc/shardfit/shardfit.conf.
std::string site_file(const Settings& settings);
double timeout_in_force(const Settings& settings);

// The program: the plugin's argument, else beside `plugin_path` (same folder, ../bin, ../../bin, ../../../bin), else
// PATH.
// "" when there is none; `looked` then lists where.
std::string find_shardfit(const Settings& settings, const std::string& plugin_path, std::string& looked);

}  // namespace shardfit::spank
