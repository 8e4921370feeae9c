// shardfit policy publish | check: the tables by which slurmctld keeps jobs inside their pins.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "plugin/policy/tables.hpp"
#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/pins.hpp"
#include "selector/cli/parse.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::cli {
namespace {

struct Loaded {
  pricing::Site site;
  regions::Catalogue catalogue;
  std::string file, tables;
  std::vector<std::string> warnings;
};

// Names of GPUs in the site file that the hardware table does not have: offers of such partitions cannot be made.
std::vector<std::string> unknown_gpus(const pricing::Site& site) {
  std::vector<std::string> out;
  const auto check = [&](const std::string& gpu, const std::string& of) {
    if (gpu.empty()) return;
    const auto mapped = site.gpu_names.find(gpu);
    try {
      hardware::find_device(mapped == site.gpu_names.end() ? gpu : mapped->second, of);
    } catch (const Error& e) {
      out.push_back(of + ": " + e.message + "; " + e.remedy);
    }
  };
  for (const auto& [name, gpu] : site.gpu_names) check(gpu, "gpu_names/" + name);
  for (const auto& [name, p] : site.partitions) {
    check(p.gpu, "partition " + name);
    for (const auto& [feature, nodes] : p.by_feature) check(nodes.gpu, "partition " + name + ", feature " + feature);
  }
  return out;
}

Loaded load(const std::string& output) {
  auto site = pricing::read_site();
  auto catalogue = regions::Catalogue::load(site.regions_dir);
  auto file = output.empty() ? policy::tables_file(site) : output;
  auto tables = policy::policy_tables(site, catalogue);
  auto warnings = policy::policy_warnings(site, catalogue);
  for (auto& warning : unknown_gpus(site)) warnings.push_back(std::move(warning));
  return {std::move(site), std::move(catalogue), std::move(file), std::move(tables), std::move(warnings)};
}

// "current", "stale" (the site file or a region changed since) or "missing".
std::string published_state(const Loaded& l) {
  std::error_code failed;
  if (!std::filesystem::exists(l.file, failed)) return "missing";
  return read_file(l.file) == l.tables ? "current" : "stale";
}

int publish(const std::string& output) {
  const auto l = load(output);
  for (const auto& w : l.warnings) fmt::print(stderr, "shardfit: warning: {}\n", w);
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(l.file).parent_path(), failed);
  write_file_atomic(l.file, l.tables);
  fmt::print("{}: {} partitions, {} accounts, {} users, {} QOS; default pins: {}\n", l.file, l.site.partitions.size(),
             l.site.policy.accounts.size(), l.site.policy.users.size(), l.site.policy.qos.size(),
             l.site.policy.default_pins.empty() ? "none" : join(l.site.policy.default_pins, " & "));
  return kExitDone;
}

struct Row {
  std::string partition, region, verdict;  // "" = inside the pins, else why not
};

std::vector<Row> verdicts(const Loaded& l, const std::vector<std::string>& pins) {
  const auto atoms = regions::parse_pins(pins, "/policy");
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, const std::string& region) {
    const auto* record = region.empty() ? nullptr : l.catalogue.find(region);
    const auto result = regions::evaluate(atoms, record);
    rows.push_back(
        {name, region.empty() ? "unknown" : region, result.passes ? "" : result.rule + ": " + result.reason});
  };
  for (const auto& [name, p] : l.site.partitions) {
    if (p.by_feature.empty() || !p.region.empty()) add(name, p.region);
    for (const auto& [feature, nodes] : p.by_feature)
      add(name + " [" + feature + "]", nodes.region.empty() ? p.region : nodes.region);
  }
  return rows;
}

int check(const std::string& output, bool json) {
  const auto l = load(output);
  const auto state = published_state(l);
  std::vector<std::pair<std::string, std::vector<std::string>>> holders = {{"default", l.site.policy.default_pins}};
  for (const auto& [name, pins] : l.site.policy.accounts) holders.emplace_back("account " + name, pins);
  for (const auto& [name, pins] : l.site.policy.users) holders.emplace_back("user " + name, pins);
  for (const auto& [name, pins] : l.site.policy.qos) holders.emplace_back("qos " + name, pins);
  for (const auto& [name, pins] : l.site.policy.partitions) holders.emplace_back("partition " + name, pins);
  if (json) {
    OrderedJson out;
    out["tables"] = {{"file", l.file}, {"state", state}};
    out["warnings"] = l.warnings;
    out["policy"] = OrderedJson::array();
    for (const auto& [name, pins] : holders) {
      OrderedJson partitions = OrderedJson::array();
      for (const auto& r : verdicts(l, pins))
        partitions.push_back(
            {{"partition", r.partition}, {"region", r.region}, {"allowed", r.verdict.empty()}, {"why", r.verdict}});
      out["policy"].push_back({{"of", name}, {"pins", pins}, {"partitions", std::move(partitions)}});
    }
    fmt::print("{}\n", out.dump(2));
  } else {
    for (const auto& [name, pins] : holders) {
      fmt::print("{}: {}\n", name, pins.empty() ? "no pins" : join(pins, " & "));
      if (pins.empty()) continue;
      for (const auto& r : verdicts(l, pins))
        fmt::print("  {:<20} {:<32} {}\n", r.partition, r.region,
                   r.verdict.empty() ? "allowed" : "refused, " + r.verdict);
    }
    for (const auto& w : l.warnings) fmt::print("warning: {}\n", w);
    fmt::print("tables {}: {}\n", l.file,
               state == "current" ? "current"
               : state == "stale" ? "stale; run shardfit policy publish"
                                  : "missing; run shardfit policy publish");
  }
  return state == "current" ? kExitDone : kExitFailed;
}

}  // namespace

int policy_command(const Arguments& arguments) {
  CLI::App app{"Tables by which slurmctld keeps jobs inside their pins (plugin/lua, docs/policy.md)", "policy"};
  app.require_subcommand(1);
  std::string output;
  bool json = false;
  auto* publish_app = app.add_subcommand("publish", "write the tables; job_submit reads them at the next job");
  publish_app->add_option("-o,--output", output, "file to write instead of <state_dir>/policy.lua");
  auto* check_app = app.add_subcommand(
      "check",
      "what the policy means for each partition, and whether the published tables are current (else exit status 1)");
  check_app->add_option("-o,--output", output, "the tables' file, if not <state_dir>/policy.lua");
  check_app->add_flag("--json", json, "as JSON");
  if (const auto done = parse(app, arguments)) return *done;
  return publish_app->parsed() ? publish(output) : check(output, json);
}

}  // namespace shardfit::cli
