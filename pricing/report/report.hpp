// The ledger's records as people and programs read them: a table, CSV or JSON; single attempts or sums by a key. A sum
// names how many records it leaves out because their amount is unknown.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pricing/ledger.hpp"
#include "pricing/money.hpp"
#include "pricing/rates.hpp"

namespace shardfit::pricing {

enum class ReportFormat { kTable, kCsv, kJson };
// Throws Error{unknown_word} naming the formats there are.
ReportFormat parse_report_format(std::string_view word);

struct Sum {
  std::string key;                                    // of the group; "" = of all
  std::int64_t attempts = 0, jobs = 0, left_out = 0;  // left_out: attempts whose cost is unknown
  double gpu_hours = 0;
  Money cost;
  std::optional<Money> predicted;  // of the attempts that have both a cost and a prediction ...
  Money predicted_actual;          // ... and what those cost
};

// by: user | account | region | gpu | month. Throws Error{unknown_word}. Amounts in `currency`; those that cannot be
// converted are left out.
std::vector<Sum> sum_by(const std::vector<LedgerRecord>& records, const std::string& by, const Rates& rates,
                        const std::string& currency);
Sum sum_all(const std::vector<LedgerRecord>& records, const Rates& rates, const std::string& currency);

std::string report_attempts(const std::vector<LedgerRecord>& records, const Sum& total, ReportFormat format);
std::string report_groups(const std::vector<Sum>& groups, const Sum& total, const std::string& by, ReportFormat format);
// One job: each attempt in full, predicted beside actual, and the runner-up. kTable only; other formats are those of
// report_attempts.
std::string report_job(const std::vector<LedgerRecord>& attempts, const Sum& total);

}  // namespace shardfit::pricing
