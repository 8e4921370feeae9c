#include "plugin/doctor/checks.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "plugin/inventory/slurm_inventory.hpp"
#include "plugin/policy/tables.hpp"
#include "plugin/spank/child.hpp"
#include "plugin/spank/request.hpp"
#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/text.hpp"

namespace shardfit::doctor {

namespace fs = std::filesystem;
using Findings = std::vector<Finding>;

namespace {

void good(Findings& f, const char* check, std::string message) {
  f.push_back({check, Level::kGood, std::move(message), ""});
}
void warn(Findings& f, const char* check, std::string message, std::string remedy) {
  f.push_back({check, Level::kWarning, std::move(message), std::move(remedy)});
}
void bad(Findings& f, const char* check, std::string message, std::string remedy) {
  f.push_back({check, Level::kBad, std::move(message), std::move(remedy)});
}

bool exists(const std::string& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : line + " ") {
    if (c == ' ' || c == '\t') {
      if (!word.empty()) out.push_back(std::move(word)), word.clear();
    } else {
      word += c;
    }
  }
  return out;
}

// The text of plugstack.conf with its include lines followed, four deep.
std::string read_plugstack(const std::string& file, int depth = 0) {
  std::string out;
  for (const auto& line : split(read_file(file, 1 << 20), '\n')) {
    const auto words = words_of(line);
    if (words.size() == 2 && words[0] == "include" && depth < 4) {
      glob_t found{};
      if (::glob(words[1].c_str(), 0, nullptr, &found) == 0) {
        for (std::size_t i = 0; i < found.gl_pathc; ++i) out += read_plugstack(found.gl_pathv[i], depth + 1);
      }
      ::globfree(&found);
    } else {
      out += line + "\n";
    }
  }
  return out;
}

// Major and minor release that the plugin was built for, "" where the file cannot be loaded.
std::string built_for(const std::string& so) {
  void* handle = ::dlopen(so.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return "";
  std::string out;
  if (const auto* version = static_cast<const unsigned*>(::dlsym(handle, "plugin_version")))
    out = fmt::format("{:02d}.{:02d}", *version >> 16 & 0xff, *version >> 8 & 0xff);
  ::dlclose(handle);
  return out;
}

void check_cli_filter(Findings& f, std::map<std::string, std::string>& config, const std::string& so) {
  const auto filters = split(config["CliFilterPlugins"], ',');
  if (std::find(filters.begin(), filters.end(), "shardfit") == filters.end()) {
    bad(f, "cli_filter",
        "CliFilterPlugins = " + (config["CliFilterPlugins"].empty() ? "(null)" : config["CliFilterPlugins"]) +
            " does not name shardfit: sbatch --hw is refused",
        "add CliFilterPlugins=shardfit to slurm.conf");
    return;
  }
  for (const auto& folder : split(config["PluginDir"], ':')) {
    const auto file = folder + "/cli_filter_shardfit.so";
    if (!exists(file)) continue;
    std::error_code failed;
    if (!so.empty() && !fs::equivalent(file, so, failed)) {
      bad(f, "cli_filter", file + " is another file than " + so + ": the two halves do not meet",
          "make it a link to the one that plugstack.conf names");
    } else {
      good(f, "cli_filter", file);
    }
    return;
  }
  bad(f, "cli_filter",
      "cli_filter_shardfit.so is in no folder of PluginDir = " + config["PluginDir"] +
          ": Slurm refuses every submission",
      "link it to spank_shardfit.so in one of them, or extend PluginDir");
}

// A Lua file beside slurm.conf that must call ours.
void check_lua(Findings& f, const char* check, const std::string& folder, const char* name,
               const std::string& what_without) {
  const auto file = folder + "/" + name;
  if (!exists(file)) {
    warn(f, check, file + " is not on this machine", "run shardfit doctor where slurmctld runs");
    return;
  }
  try {
    if (to_lower(read_file(file, 1 << 20)).find("shardfit") == std::string::npos) {
      bad(f, check, file + " does not call shardfit: " + what_without,
          std::string("add the lines at the head of ") +
              (std::string(name) == "jobcomp.lua" ? "jobcomp.lua" : "shardfit_policy.lua"));
      return;
    }
    good(f, check, file);
  } catch (const Error& e) {
    warn(f, check, e.what(), "run shardfit doctor as a user who may read it");
  }
}

void check_controller(Findings& f, std::map<std::string, std::string>& config, const pricing::Site* site) {
  const auto conf = config["SLURM_CONF"];
  const auto folder = fs::path(conf).parent_path().string();
  const auto submit = split(config["JobSubmitPlugins"], ',');
  const auto lua = std::find(submit.begin(), submit.end(), "lua");
  if (lua == submit.end()) {
    bad(f, "job_submit",
        "JobSubmitPlugins = " + config["JobSubmitPlugins"] + " does not name lua: pins are not enforced",
        "add JobSubmitPlugins=lua to slurm.conf");
  } else {
    if (std::find(lua, submit.end(), "all_partitions") != submit.end()) {
      bad(f, "job_submit",
          "all_partitions comes after lua in JobSubmitPlugins: it adds partitions that were not checked",
          "name it before lua");
    }
    check_lua(f, "job_submit", folder, "job_submit.lua", "pins are not enforced");
  }
  if (config["JobCompType"] != "jobcomp/lua") {
    warn(f, "jobcomp", "JobCompType = " + config["JobCompType"] + ": nothing is written to the spool",
         "set JobCompType=jobcomp/lua, or import by shardfit ledger import --sacct");
  } else {
    check_lua(f, "jobcomp", folder, "jobcomp.lua", "nothing is written to the spool");
    const auto spool = site ? fs::path(site->spool).parent_path().string() : "";
    if (site && !exists(spool))
      bad(f, "jobcomp", "the spool's folder " + spool + " does not exist",
          "make it, writable for SlurmUser (" + config["SlurmUser"] + ")");
  }
}

void check_policy(Findings& f, const pricing::Site& site) {
  try {
    const auto catalogue = regions::Catalogue::load(site.regions_dir);
    for (const auto& w : policy::policy_warnings(site, catalogue))
      warn(f, "policy", w, "mend the site file or its regions");
    const auto file = policy::tables_file(site);
    if (!exists(file)) {
      bad(f, "policy", file + " does not exist: job_submit refuses every job", "run shardfit policy publish");
    } else if (read_file(file) != policy::policy_tables(site, catalogue)) {
      bad(f, "policy", file + " is older than the site file or the regions", "run shardfit policy publish");
    } else {
      good(f, "policy", file + " is current");
    }
  } catch (const Error& e) {
    bad(f, "policy", e.what(), e.remedy);
  }
}

void check_partitions(Findings& f, const pricing::Site& site) {
  try {
    const auto inventory = inventory::slurm_inventory({.cluster = site.cluster, .deadline_seconds = 5});
    std::set<std::string> of_slurm;
    for (const auto& p : inventory.partitions) {
      of_slurm.insert(p.name);
      if (!site.partitions.count(p.name))
        warn(f, "partitions",
             "the site file does not describe partition " + p.name +
                 ": it is never chosen, and jobs with pins are refused there",
             "add it");
    }
    for (const auto& [name, p] : site.partitions) {
      if (!of_slurm.count(name))
        warn(f, "partitions", "the site file describes partition " + name + ", which Slurm does not have", "remove it");
    }
    good(f, "partitions", fmt::format("{} partitions, {} nodes", inventory.partitions.size(), inventory.nodes.size()));
  } catch (const Error& e) {
    bad(f, "partitions", e.what(), e.remedy);
  }
}

}  // namespace

std::map<std::string, std::string> parse_config(std::string_view text) {
  std::map<std::string, std::string> out;
  for (const auto& line : split(text, '\n')) {
    const auto equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    auto value = trim(line.substr(equals + 3));
    out[trim(line.substr(0, equals))] = value == "(null)" ? "" : value;
  }
  return out;
}

Findings check_plugstack(const std::string& text, const std::string& file, const std::string& slurm_version) {
  Findings f;
  int lines = 0;
  for (const auto& line : split(text, '\n')) {
    const auto words = words_of(line);
    if (words.size() < 2 || words[0][0] == '#' || words[1].find("spank_shardfit.so") == std::string::npos) continue;
    if (++lines > 1) {
      bad(f, "plugstack", file + " loads spank_shardfit.so more than once", "keep one line");
      continue;
    }
    const auto& so = words[1];
    if (so[0] == '/' && !exists(so)) {
      bad(f, "plugstack",
          so + " does not exist" + (words[0] == "required" ? ": sbatch and slurmd refuse to start" : ""),
          "install it, or mend the line in " + file);
      continue;
    }
    const auto version = so[0] == '/' ? built_for(so) : "";
    if (so[0] == '/' && version.empty()) {
      bad(f, "plugstack", so + " cannot be loaded", "build it again on this system");
    } else if (!version.empty() && !slurm_version.empty() && slurm_version.rfind(version, 0) != 0) {
      bad(f, "plugstack", so + " is built for Slurm " + version + ", this is " + slurm_version,
          "build it again with this release's libslurm-dev");
    } else {
      good(f, "plugstack", so + (version.empty() ? "" : " for Slurm " + version));
    }
    std::vector<std::string> rest(words.begin() + 2, words.end());
    std::vector<char*> arguments;
    for (auto& word : rest) arguments.push_back(word.data());
    const auto settings = spank::parse_settings(static_cast<int>(arguments.size()), arguments.data());
    if (!settings.unknown.empty())
      bad(f, "plugstack", "\"" + settings.unknown + "\" is not understood",
          "known are shardfit=PATH conf=PATH timeout=SECONDS");
    std::string looked;
    const auto program = spank::find_shardfit(settings, so, looked);
    if (program.empty()) {
      bad(f, "plugstack", "the plugin finds no program shardfit (" + looked + ")",
          "name it by shardfit=PATH in " + file);
    } else {
      good(f, "plugstack", "decisions by " + program + ", site file " + spank::site_file(settings));
    }
  }
  if (lines == 0)
    bad(f, "plugstack", file + " does not load spank_shardfit.so: sbatch knows no --hw",
        "add: required PATH/spank_shardfit.so");
  return f;
}

Findings examine() {
  Findings f;
  std::optional<pricing::Site> site;
  try {
    site = pricing::read_site();
    if (site->file.empty()) {
      bad(f, "site", "there is no site file", "write /etc/shardfit/shardfit.conf, or name one by SHARDFIT_CONF");
    } else {
      good(f, "site", site->file);
    }
  } catch (const Error& e) {
    bad(f, "site", e.what(), e.remedy);
  }
  if (site && site->cluster.empty() && !site->file.empty())
    warn(f, "site", "the site file names no cluster", "set \"cluster\" to Slurm's ClusterName");

  if (const char* named = std::getenv("SLURM_CONF"); named && *named && ::access(named, R_OK) != 0) {
    bad(f, "slurm", std::string("SLURM_CONF names ") + named + ", which cannot be read",
        "unset it, or name the cluster's slurm.conf");
    return f;
  }
  const auto asked = spank::run_child({"/usr/bin/env", "scontrol", "show", "config"}, {}, 10);
  auto config = parse_config(asked.out);
  if (asked.end != spank::ChildResult::End::kExited || asked.status != 0 || config.empty()) {
    const auto why = asked.end == spank::ChildResult::End::kTimedOut
                         ? "scontrol did not answer within 10 s"
                         : "scontrol show config failed: " + trim(asked.err).substr(0, 200);
    bad(f, "slurm", why, "run shardfit doctor where Slurm's commands reach slurmctld");
    return f;
  }
  good(f, "slurm", "version " + config["SLURM_VERSION"] + ", cluster " + config["ClusterName"]);
  if (site && !site->cluster.empty() && site->cluster != config["ClusterName"]) {
    warn(f, "site", "the site file's cluster is " + site->cluster + ", Slurm's is " + config["ClusterName"],
         "use one name: the ledger tells attempts apart by it");
  }
  std::string so;
  const auto plugstack = config["PlugStackConfig"].empty()
                             ? (fs::path(config["SLURM_CONF"]).parent_path() / "plugstack.conf").string()
                             : config["PlugStackConfig"];
  try {
    const auto text = read_plugstack(plugstack);
    for (auto& finding : check_plugstack(text, plugstack, config["SLURM_VERSION"])) f.push_back(std::move(finding));
    for (const auto& line : split(text, '\n')) {
      const auto words = words_of(line);
      if (words.size() >= 2 && words[0][0] != '#' && words[1].find("spank_shardfit.so") != std::string::npos)
        so = words[1];
    }
  } catch (const Error& e) {
    bad(f, "plugstack", e.what(), "write it; see docs/slurm.md");
  }
  check_cli_filter(f, config, so);
  check_controller(f, config, site ? &*site : nullptr);
  if (site) {
    check_policy(f, *site);
    check_partitions(f, *site);
  }
  return f;
}

}  // namespace shardfit::doctor
