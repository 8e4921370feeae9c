// Where measured rates are kept: one SQLite file a state folder.
#include <fmt/format.h>
#include <sqlite3.h>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/calibrate/calibration.hpp"

namespace shardfit::calibrate {
namespace {

constexpr const char* kFile = "calibration.sqlite";
constexpr int kBusyMilliseconds = 5000;
constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS rates (cpu TEXT NOT NULL, cores INTEGER NOT NULL, ranks INTEGER NOT NULL, threads "
    "INTEGER NOT NULL, "
    "type TEXT NOT NULL, as_of TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (cpu, cores, ranks, threads, type))";

struct Close {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, Close>;
using Statement = std::unique_ptr<sqlite3_stmt, Close>;

Database open(const std::filesystem::path& file, int flags) {
  sqlite3* raw = nullptr;
  const int status = sqlite3_open_v2(file.c_str(), &raw, flags, nullptr);
  Database database(raw);
  if (status != SQLITE_OK) return nullptr;
  sqlite3_busy_timeout(raw, kBusyMilliseconds);
  return database;
}

Statement prepare(sqlite3* database, const char* text) {
  sqlite3_stmt* raw = nullptr;
  if (sqlite3_prepare_v2(database, text, -1, &raw, nullptr) != SQLITE_OK) return nullptr;
  return Statement(raw);
}

void bind_text(sqlite3_stmt* statement, int index, const std::string& text) {
  sqlite3_bind_text(statement, index, text.c_str(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
}

}  // namespace

std::vector<std::filesystem::path> state_folders(const std::string& site_state_dir) {
  if (const char* chosen = std::getenv("SHARDFIT_STATE_DIR"); chosen && *chosen) return {chosen};
  std::vector<std::filesystem::path> folders;
  if (!site_state_dir.empty()) folders.emplace_back(site_state_dir);
  if (const char* xdg = std::getenv("XDG_STATE_HOME"); xdg && *xdg)
    folders.push_back(std::filesystem::path(xdg) / "shardfit");
  else if (const char* home = std::getenv("HOME"); home && *home)
    folders.push_back(std::filesystem::path(home) / ".local/state/shardfit");
  return folders;
}

void store_rates(const std::filesystem::path& folder, const Machine& machine, const BusyRates& rates) {
  const std::filesystem::path file = folder / kFile;
  const auto fail = [&](const std::string& why) {
    Error error("state_unwritable", "", fmt::format("the measured rates cannot be stored: {}", why),
                "make the folder writable or set SHARDFIT_STATE_DIR");
    error.in_file(file.string());
    throw error;
  };
  std::error_code status;
  std::filesystem::create_directories(folder, status);
  if (status) fail(status.message());
  const Database database = open(file, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (!database) fail("not a database that can be opened for writing");
  const auto check = [&](bool good) {
    if (!good) fail(sqlite3_errmsg(database.get()));
  };
  check(sqlite3_exec(database.get(), kSchema, nullptr, nullptr, nullptr) == SQLITE_OK);
  const Statement insert = prepare(database.get(), "INSERT OR REPLACE INTO rates VALUES (?,?,?,?,?,?,?)");
  check(insert != nullptr);
  bind_text(insert.get(), 1, machine.cpu);
  sqlite3_bind_int(insert.get(), 2, machine.cores);
  sqlite3_bind_int(insert.get(), 3, rates.ranks);
  sqlite3_bind_int(insert.get(), 4, rates.threads);
  bind_text(insert.get(), 5, rates.type);
  bind_text(insert.get(), 6, rates.as_of);
  bind_text(insert.get(), 7, to_json(rates).dump());
  check(sqlite3_step(insert.get()) == SQLITE_DONE);
}

std::optional<Calibration> load_calibration(const std::vector<std::filesystem::path>& folders, const Machine& machine) {
  std::map<std::tuple<int, int, std::string>, BusyRates> newest;
  for (const auto& folder : folders) {
    std::error_code status;
    const std::filesystem::path file = folder / kFile;
    if (!std::filesystem::exists(file, status) || status) continue;
    const Database database = open(file, SQLITE_OPEN_READONLY);
    if (!database) continue;
    const Statement select =
        prepare(database.get(), "SELECT record FROM rates WHERE cpu = ? AND cores = ? ORDER BY ranks, threads, type");
    if (!select) continue;
    bind_text(select.get(), 1, machine.cpu);
    sqlite3_bind_int(select.get(), 2, machine.cores);
    while (sqlite3_step(select.get()) == SQLITE_ROW) {
      const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(select.get(), 0));
      if (!text) continue;
      try {
        BusyRates rates = parse_rates(parse_json(text, file.string()));
        BusyRates& slot = newest[{rates.ranks, rates.threads, rates.type}];
        if (slot.gemms.empty() || slot.as_of < rates.as_of) slot = std::move(rates);
      } catch (const Error&) {
        // A record of another version: measured anew by the next shardfit calibrate.
      }
    }
  }
  if (newest.empty()) return std::nullopt;
  Calibration calibration;
  calibration.cpu = machine.cpu;
  calibration.cores = machine.cores;
  for (auto& [key, rates] : newest) calibration.rates.push_back(std::move(rates));
  return calibration;
}

std::optional<Calibration> load_calibration(const std::string& site_state_dir) {
  return load_calibration(state_folders(site_state_dir), this_machine());
}

}  // namespace shardfit::calibrate
