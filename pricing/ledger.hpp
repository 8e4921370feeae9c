// The ledger: one record an attempt of a job, with what it cost, what was predicted and what was measured
// (docs/report.md). SQLite under the site's state_dir; booking the same attempt again changes nothing.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pricing/attempt.hpp"
#include "pricing/book.hpp"
#include "pricing/gpu_types.hpp"
#include "pricing/money.hpp"
#include "pricing/offers.hpp"
#include "pricing/rates.hpp"
#include "pricing/site.hpp"

namespace shardfit::pricing {

struct LedgerRecord {
  std::string cluster;
  std::int64_t job_id = 0, restart = 0;
  std::optional<std::int64_t> array_job_id, array_task_id, het_job_id;
  std::int64_t submit = 0, start = 0, end = 0;  // Unix seconds; 0 = not known
  std::string state, user, account, partition, region, name,
      gpu;  // gpu: key of the hardware table, "cpu", "" = not known
  std::int64_t nodes = 0, gpus = 0, cpus = 0;
  double seconds = 0;
  std::optional<double> billed_seconds;
  std::optional<Price> price;
  std::optional<Money> cost;
  std::vector<std::pair<std::string, Money>> cost_parts;
  std::vector<std::pair<std::string, std::string>> basis;  // part of the cost, or field -> what it was reckoned from
  std::string rate_date;
  struct {
    std::optional<double> seconds, cost, memory_peak, step;  // cost in `currency`; bytes; seconds a step
  } predicted;
  struct {
    std::optional<double> memory_peak, step;
  } measured;
  struct {
    std::string offer;
    std::optional<double> cost;
  } runner_up;
  std::string currency;  // of cost, predicted.cost and runner_up.cost
  std::vector<std::string> pins;
  std::string plan;                                          // sha256, hex
  std::vector<std::pair<std::string, std::string>> unknown;  // field -> why it is null
};

nlohmann::ordered_json to_json(const LedgerRecord& record);
LedgerRecord parse_ledger_record(const nlohmann::json& object);

// What an attempt cost and how it compares: priced by what was allocated, at the price of the day it started.
struct Accounts {
  const Site& site;
  const Book& book;
  const GpuTypes& types;
  const Rates& rates;
  mutable std::map<std::string, std::vector<PriceRow>> price_history =
      {};  // by partition entry: the book is asked once for each
};
LedgerRecord account(const Attempt& attempt, const Accounts& accounts);

struct LedgerFilter {                  // "" or 0 = any
  std::optional<std::int64_t> job_id;  // also the array's id
  std::string cluster, user, account, region;
  std::int64_t since = 0, until = 0;  // attempts that ended in [since, until)
};

struct LedgerImport {
  std::int64_t lines = 0, booked = 0, known = 0;
  std::vector<std::string> unreadable;  // "line 12: ..."
};

class Ledger {
 public:
  // state_dir/ledger.db, made where it is not there (write = true) or taken as empty (write = false).
  Ledger(const std::string& state_dir, bool write);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Books each attempt not yet known by (cluster, job id, start); `again` replaces what is known. One transaction.
  LedgerImport book(const std::vector<Attempt>& attempts, const Accounts& accounts, bool again);
  std::vector<LedgerRecord> find(const LedgerFilter& filter) const;  // by end, then job id
  const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::unique_ptr<class Database> db_;
};

// The lines of a spool; a last line without its end is still being written and is left for the next time. Unreadable
// lines are named in `import`.
std::vector<Attempt> read_spool(std::string_view text, LedgerImport& import);

}  // namespace shardfit::pricing
