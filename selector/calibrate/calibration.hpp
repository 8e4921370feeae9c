// Measured rates of this machine: their file form, where they are kept, and how they are measured.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "selector/time/calibration.hpp"

namespace shardfit::calibrate {

using timing::BusyRates;
using timing::Calibration;

struct Machine {
  std::string cpu;  // "AMD EPYC 9R14"
  int cores = 1;    // online; with the model, the key of stored rates
  int usable = 1;   // of these, that this process may run on
};
Machine this_machine();

// One probe's record, as shardfit-train --probe rates prints it. Throws Error naming the key: missing, negative or
// absurd rates.
BusyRates parse_rates(const nlohmann::json& object, const std::string& where = "");
nlohmann::ordered_json to_json(const BusyRates& rates);
// Sets the factors of `rates` from its measured steps; parse_rates does so. Throws Error for a step that cannot be
// read.
void fit_factors(BusyRates& rates);

// Folders that may hold the database, in the order of preference: $SHARDFIT_STATE_DIR alone when set; else the site's
// state_dir
// ("" = none), then $XDG_STATE_HOME/shardfit (~/.local/state/shardfit).
std::vector<std::filesystem::path> state_folders(const std::string& site_state_dir);

// Stores one record under (CPU model, cores, ranks, threads, type) in FOLDER/calibration.sqlite, replacing an older
// one. Throws Error{state_unwritable}.
void store_rates(const std::filesystem::path& folder, const Machine& machine, const BusyRates& rates);

// All records of `machine` in those folders, the newest of each (ranks, threads, type); nullopt when there is none. A
// folder without a database or one that cannot be read counts as empty: a prediction without rates says so itself.
std::optional<Calibration> load_calibration(const std::vector<std::filesystem::path>& folders, const Machine& machine);
// The same for this machine and the site file's state_dir.
std::optional<Calibration> load_calibration(const std::string& site_state_dir = "");

struct ProbeOptions {
  int ranks = 1, threads = 1;
  std::string type = "fp32";
  bool quick = true;
  double deadline_seconds = 600;
  std::string program;  // "" = shardfit-train beside this program, else on PATH; $SHARDFIT_TRAIN names another
};
// Runs shardfit-train --probe rates and reads what it prints. Throws Error{probe_missing | probe_failed |
// probe_timeout}.
BusyRates run_probe(const ProbeOptions& options);

}  // namespace shardfit::calibrate
