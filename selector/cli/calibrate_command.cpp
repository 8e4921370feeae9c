// shardfit calibrate: measures this machine's CPUs and keeps the rates by which the device "cpu" is predicted.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/calibrate/calibration.hpp"
#include "selector/cli/parse.hpp"

namespace shardfit::cli {
namespace {

using calibrate::BusyRates;

struct Options {
  bool quick = false, json = false, show = false;
  std::vector<int> ranks;
  int threads = 0;
  std::vector<std::string> types;
  double deadline_seconds = 900;
};

// How many ranks to measure where nobody says: one with all the cores, and powers of two while each keeps a core.
std::vector<int> usual_ranks(int cores, bool quick) {
  std::vector<int> list;
  for (int ranks = 1; ranks <= cores && ranks <= (quick ? 2 : 8); ranks *= 2) list.push_back(ranks);
  return list;
}

// The best rate of the measured products, forward, in FLOP/s of all ranks together.
double best_product(const BusyRates& rates) {
  double best = 0;
  for (const auto& s : rates.gemms) best = std::max(best, 2 * s.m * s.k * s.n / s.forward);
  return best * rates.ranks;
}

// Of the largest gather measured: small ones stay in the caches.
double gather_rate(const BusyRates& rates) {
  return rates.all_gather.empty() ? 0 : rates.all_gather.back().bytes / rates.all_gather.back().seconds;
}

void print_table(const calibrate::Machine& machine, const std::vector<BusyRates>& list, const std::string& folder) {
  std::printf("%s, %d cores\n", machine.cpu.c_str(), machine.cores);
  std::printf("  %5s  %7s  %4s  %13s  %14s  %11s  %9s\n", "ranks", "threads", "type", "products", "AdamW", "all-gather",
              "steps");
  for (const BusyRates& rates : list) {
    const std::string gather = rates.all_gather.empty() ? "-" : fmt::format("{:.1f} GB/s", gather_rate(rates) / 1e9);
    std::printf("  %5d  %7d  %4s  %6.0f GFLOP/s  %7.0f M par/s  %11s  %8.2fx\n", rates.ranks, rates.threads,
                rates.type.c_str(), best_product(rates) / 1e9, rates.adamw > 0 ? rates.ranks / rates.adamw / 1e6 : 0,
                gather.c_str(), rates.compute_factor);
  }
  std::printf("steps: time of whole measured steps over what the single rates predict of them\n");
  if (!folder.empty()) std::printf("stored in %s\n", folder.c_str());
  const auto worst = std::max_element(list.begin(), list.end(),
                                      [](const BusyRates& a, const BusyRates& b) { return a.disturbed < b.disturbed; });
  if (worst != list.end() && worst->disturbed > 0.1)
    std::printf(
        "note: other programs took %.0f %% of the processors meanwhile, and predictions reckon with them; calibrate "
        "again when they have gone\n",
        100 * worst->disturbed);
}

std::string store(const calibrate::Machine& machine, const std::vector<BusyRates>& list,
                  const std::string& site_state_dir) {
  std::optional<Error> first;
  for (const auto& folder : calibrate::state_folders(site_state_dir)) {
    try {
      for (const BusyRates& rates : list) calibrate::store_rates(folder, machine, rates);
      return folder.string();
    } catch (const Error& error) {  // the site's folder is the administrator's; then the user's own
      if (!first) first = error;
    }
  }
  if (first) throw *first;
  throw Error("state_unwritable", "", "no folder to store the measured rates in", "set SHARDFIT_STATE_DIR");
}

}  // namespace

int calibrate_command(const Arguments& arguments) {
  Options options;
  CLI::App app(
      "Measures this machine's CPUs with the runtime's own kernels, so that steps on the device \"cpu\" can be "
      "predicted",
      "calibrate");
  app.add_flag("--quick", options.quick, "About a minute instead of several: fewer shapes, one and two ranks, fp32");
  app.add_option("--ranks", options.ranks, "Ranks busy at once, instead of the usual ones; repeatable")
      ->check(CLI::Range(1, 1024));
  app.add_option("--threads", options.threads, "Threads of each rank (default: all cores over the ranks)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--type", options.types, "fp32 or bf16; repeatable (default: fp32 with --quick, else both)")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--deadline", options.deadline_seconds, "Seconds that one measurement may take")
      ->check(CLI::Range(1.0, 86400.0));
  app.add_flag("--show", options.show, "Print what is stored for this machine; measure nothing");
  app.add_flag("--json", options.json, "Print the records as JSON");
  if (const auto status = parse(app, arguments)) return *status;

  const calibrate::Machine machine = calibrate::this_machine();
  const std::string state_dir = pricing::read_site().state_dir;
  std::vector<BusyRates> list;
  std::string folder;
  if (options.show) {
    const auto stored = calibrate::load_calibration(state_dir);
    if (!stored)
      throw Error("not_calibrated", "",
                  fmt::format("nothing is stored for {} with {} cores", machine.cpu, machine.cores),
                  "run shardfit calibrate --quick", kExitFailed);
    list = stored->rates;
  } else {
    if (options.types.empty())
      options.types = options.quick ? std::vector<std::string>{"fp32"} : std::vector<std::string>{"fp32", "bf16"};
    if (options.ranks.empty()) options.ranks = usual_ranks(machine.usable, options.quick);
    for (const int ranks : options.ranks)
      for (const std::string& type : options.types) {
        const int threads = options.threads > 0 ? options.threads : std::max(1, machine.usable / ranks);
        if (!options.json)
          std::fprintf(stderr, "measuring %d rank%s of %d thread%s, %s ...\n", ranks, ranks == 1 ? "" : "s", threads,
                       threads == 1 ? "" : "s", type.c_str());
        list.push_back(calibrate::run_probe({.ranks = ranks,
                                             .threads = threads,
                                             .type = type,
                                             .quick = options.quick,
                                             .deadline_seconds = options.deadline_seconds}));
      }
    folder = store(machine, list, state_dir);
  }
  if (!options.json) {
    print_table(machine, list, folder);
    return kExitDone;
  }
  OrderedJson out;
  out["cpu"] = machine.cpu;
  out["cores"] = machine.cores;
  if (!folder.empty()) out["stored"] = folder;
  out["rates"] = OrderedJson::array();
  for (const BusyRates& rates : list) out["rates"].push_back(calibrate::to_json(rates));
  std::printf("%s\n", out.dump().c_str());
  return kExitDone;
}

}  // namespace shardfit::cli
