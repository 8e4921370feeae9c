#include "pricing/ledger.hpp"

#include <filesystem>

#include "pricing/sqlite.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::pricing {
namespace {

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS attempts (cluster TEXT NOT NULL, job_id INTEGER NOT NULL, start INTEGER NOT NULL, ended INTEGER, array_job_id INTEGER, user TEXT, account TEXT, region TEXT, "
    "record TEXT NOT NULL, PRIMARY KEY (cluster, job_id, start));"
    "CREATE INDEX IF NOT EXISTS by_end ON attempts (ended);"
    "PRAGMA user_version = 1;";

}  // namespace

Ledger::Ledger(const std::string& state_dir, bool write) {
  namespace fs = std::filesystem;
  file_ = (fs::path(state_dir) / "ledger.db").string();
  std::error_code ec;
  if (!write) {
    if (fs::exists(file_, ec)) db_ = std::make_unique<Database>(file_, Database::Mode::kRead);
    return;
  }
  fs::create_directories(state_dir, ec);
  if (ec)
    throw Error("file_unwritable", "", "the state folder cannot be made: " + ec.message(),
                "set state_dir in the site file to a folder you may write")
        .in_file(state_dir);
  db_ = std::make_unique<Database>(file_, Database::Mode::kCreate);
  db_->execute(kSchema);
}

Ledger::~Ledger() = default;

LedgerImport Ledger::book(const std::vector<Attempt>& attempts, const Accounts& accounts, bool again) {
  LedgerImport result;
  db_->execute("BEGIN IMMEDIATE");
  try {
    Statement known(*db_, "SELECT 1 FROM attempts WHERE cluster = ? AND job_id = ? AND start = ?");
    Statement insert(
        *db_,
        "INSERT OR REPLACE INTO attempts (cluster, job_id, start, ended, array_job_id, user, account, region, record) VALUES (?,?,?,?,?,?,?,?,?)");
    for (const auto& a : attempts) {
      ++result.lines;
      // An attempt that never started has no start of its own: its end tells it apart.
      const std::string cluster = a.cluster.empty() ? accounts.site.cluster : a.cluster;
      const std::int64_t start = a.start > 0 ? a.start : a.end;
      known.bind(1, cluster);
      known.bind(2, a.job_id);
      known.bind(3, start);
      const bool there = known.step();
      known.reset();
      if (there) {
        ++result.known;
        if (!again) continue;
      } else {
        ++result.booked;
      }
      const LedgerRecord r = account(a, accounts);
      int c = 1;
      insert.bind(c++, cluster);
      insert.bind(c++, a.job_id);
      insert.bind(c++, start);
      insert.bind(c++, r.end);
      insert.bind(c++, r.array_job_id.value_or(0));
      insert.bind(c++, r.user);
      insert.bind(c++, r.account);
      insert.bind(c++, r.region);
      insert.bind(c++, to_json(r).dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
      insert.run();
    }
    db_->execute("COMMIT");
  } catch (...) {
    try {
      db_->execute("ROLLBACK");
    } catch (...) {  // the first failure is the one to tell
    }
    throw;
  }
  return result;
}

std::vector<LedgerRecord> Ledger::find(const LedgerFilter& f) const {
  std::vector<LedgerRecord> out;
  if (!db_) return out;
  std::string sql = "SELECT record FROM attempts WHERE 1";
  if (f.job_id) sql += " AND (job_id = ?1 OR array_job_id = ?1)";
  if (!f.cluster.empty()) sql += " AND cluster = ?2";
  if (!f.user.empty()) sql += " AND user = ?3";
  if (!f.account.empty()) sql += " AND account = ?4";
  if (!f.region.empty()) sql += " AND region = ?5 COLLATE NOCASE";
  if (f.since) sql += " AND ended >= ?6";
  if (f.until) sql += " AND ended < ?7";
  Statement s(*db_, sql + " ORDER BY ended, job_id, start");
  s.bind(1, f.job_id.value_or(0));
  s.bind(2, f.cluster);
  s.bind(3, f.user);
  s.bind(4, f.account);
  s.bind(5, f.region);
  s.bind(6, f.since);
  s.bind(7, f.until);
  while (s.step()) out.push_back(parse_ledger_record(parse_json(s.text(0), file_)));
  return out;
}

std::vector<Attempt> read_spool(std::string_view text, LedgerImport& import) {
  std::vector<Attempt> out;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    ++number;
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      out.push_back(parse_spool_line(line, "line " + std::to_string(number)));
    } catch (const Error& e) {
      import.unreadable.push_back(e.what());
    }
  }
  return out;
}

}  // namespace shardfit::pricing
