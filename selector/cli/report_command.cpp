// shardfit report [JOBID]: what jobs cost, predicted beside actual.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "pricing/report/report.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "selector/cli/parse.hpp"

namespace shardfit::cli {
namespace {

// A date, or a span before now ("7d").
std::int64_t moment(const std::string& text, const std::string& where) {
  if (text.empty()) return 0;
  if (const auto t = parse_time(text)) return *t;
  try {
    return now_seconds() - static_cast<std::int64_t>(parse_duration(text, where));
  } catch (const Error&) {
    throw Error("bad_time", where, "\"" + text + "\" is neither a date nor a span", "write it as 2026-08-01 or 30d");
  }
}

}  // namespace

int report_command(const Arguments& arguments) {
  CLI::App app{"What finished jobs cost, predicted beside actual", "report"};
  std::optional<std::int64_t> job;
  pricing::LedgerFilter filter;
  std::string since, until, by, format = "table", output, currency;
  bool json = false;
  app.add_option("JOBID", job, "One job (or array) in full")->check(CLI::PositiveNumber);
  app.add_option("--cluster", filter.cluster, "Only this cluster");
  app.add_option("--user", filter.user, "Only this user");
  app.add_option("--account", filter.account, "Only this account");
  app.add_option("--region", filter.region, "Only this region");
  app.add_option("--since", since, "Attempts that ended on this day or later (2026-08-01, or 30d before now)");
  app.add_option("--until", until, "Attempts that ended before this day");
  app.add_option("--by", by, "Sums by user, account, region, gpu or month");
  app.add_option("--format", format, "table, csv or json");
  app.add_option("--currency", currency, "Currency of the sums (default: the site's)");
  app.add_flag("--json", json, "The same as --format json");
  app.add_option("-o,--output", output, "Write to this file");
  if (const auto status = parse(app, arguments)) return *status;

  const auto kind = pricing::parse_report_format(json ? "json" : format);
  filter.job_id = job;
  filter.since = moment(since, "--since");
  filter.until = moment(until, "--until");
  const auto site = pricing::read_site();
  if (currency.empty()) currency = site.currency;
  if (!pricing::is_currency_code(currency))
    throw Error("bad_currency", "--currency", "\"" + currency + "\" is not a currency code",
                "write three capital letters as EUR, USD, CHF");
  const auto rates = pricing::Rates::load(site.state_dir);
  const pricing::Ledger ledger(site.state_dir, false);
  const auto records = ledger.find(filter);
  if (job && records.empty())
    throw Error("unknown_job", "JOBID", "job " + std::to_string(*job) + " is not in " + ledger.file(),
                "book finished jobs with shardfit ledger import");

  const auto total = pricing::sum_all(records, rates, currency);
  std::string text;
  if (!by.empty()) text = pricing::report_groups(pricing::sum_by(records, by, rates, currency), total, by, kind);
  else if (job && kind == pricing::ReportFormat::kTable) text = pricing::report_job(records, total);
  else text = pricing::report_attempts(records, total, kind);
  if (output.empty()) std::fwrite(text.data(), 1, text.size(), stdout);
  else write_file_atomic(output, text);
  return kExitDone;
}

}  // namespace shardfit::cli
