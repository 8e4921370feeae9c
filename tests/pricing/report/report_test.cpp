// Sums and formats of the report.
#include "pricing/report/report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "pricing/csv.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

LedgerRecord record(std::int64_t id, const char* user, const char* gpu, std::optional<double> cost,
                    const char* end = "2026-11-29T12:00:00Z") {
  LedgerRecord r;
  r.cluster = "c1";
  r.job_id = id;
  r.end = *parse_time(end);
  r.start = r.end - 3600;
  r.state = "COMPLETED";
  r.user = user;
  r.account = "lab";
  r.partition = "p";
  r.region = "verda/FIN-03";
  r.gpu = gpu;
  r.nodes = 1;
  r.gpus = 8;
  r.seconds = 3600;
  r.currency = "EUR";
  if (cost) r.cost = Money(*cost, "EUR");
  else r.unknown.emplace_back("cost", "no price, \"really\"");
  return r;
}

std::vector<LedgerRecord> records() {
  auto list =
      std::vector<LedgerRecord>{record(1, "ada", "h100_sxm_80gb", 10), record(2, "ada", "l40s_48gb", std::nullopt),
                                record(3, "bob", "h100_sxm_80gb", 0.5, "2026-10-03T00:00:00Z")};
  list[0].predicted = {3000, 9.0, 4e10, 1.5};
  list[0].measured = {4.4e10, 1.6};
  list[0].runner_up = {"c1/a100", 12.5};
  return list;
}

const Rates& rates() {
  static const Rates r = Rates::shipped();
  return r;
}

TEST(Report, SumsSayWhatTheyLeaveOut) {
  const Sum s = sum_all(records(), rates(), "EUR");
  EXPECT_EQ(s.attempts, 3);
  EXPECT_EQ(s.jobs, 3);
  EXPECT_EQ(s.left_out, 1);
  EXPECT_EQ(s.cost.to_string(), "10.50 EUR");
  EXPECT_EQ(s.gpu_hours, 24);
  EXPECT_EQ(s.predicted->to_string(), "9.00 EUR");
  EXPECT_EQ(s.predicted_actual.to_string(), "10.00 EUR") << "only of those that were predicted";
  EXPECT_NE(report_attempts(records(), s, ReportFormat::kTable).find("without 1 attempts whose cost is unknown"),
            std::string::npos);
}

TEST(Report, OtherCurrencies) {
  auto list = records();
  list[0].cost = Money(10.389, "USD");
  EXPECT_EQ(sum_all(list, rates(), "EUR").cost.to_string(), "10.50 EUR");
  EXPECT_EQ(sum_all(list, rates(), "BRL").left_out, 3) << "no rate, no amount";
}

TEST(Report, Groups) {
  const auto by = [](const char* key) {
    std::string out;
    for (const auto& g : sum_by(records(), key, rates(), "EUR"))
      out += g.key + ":" + g.cost.to_string() + ":" + std::to_string(g.left_out) + " ";
    return out;
  };
  EXPECT_EQ(by("user"), "ada:10.00 EUR:1 bob:0.50 EUR:0 ");
  EXPECT_EQ(by("month"), "2026-10:0.50 EUR:0 2026-11:10.00 EUR:1 ");
  EXPECT_EQ(by("gpu"), "h100_sxm_80gb:10.50 EUR:0 l40s_48gb:0.00 EUR:1 ");
  EXPECT_EQ(by("region"), "verda/FIN-03:10.50 EUR:1 ");
  EXPECT_THROW(by("week"), Error);
}

TEST(Report, FormatsThatAreNotThereAreRefused) {
  for (const char* word : {"html", "focus", "prometheus", "xml", ""}) {
    try {
      parse_report_format(word);
      ADD_FAILURE() << word;
    } catch (const Error& e) {
      EXPECT_NE(e.remedy.find("table, csv, json"), std::string::npos);
    }
  }
}

TEST(Report, JsonAndCsvHoldTheSameRecords) {
  const Sum s = sum_all(records(), rates(), "EUR");
  const Json j = parse_json(report_attempts(records(), s, ReportFormat::kJson));
  ASSERT_EQ(j["records"].size(), 3u);
  EXPECT_TRUE(j["records"][1]["cost"]["amount"].is_null());
  EXPECT_EQ(j["records"][1]["unknown"]["cost"], "no price, \"really\"");
  EXPECT_EQ(j["sum"]["left_out"], 1);
  EXPECT_TRUE(j["sum"]["cost"].is_number());
  const std::vector<LedgerRecord> unknown = {records()[1]};
  EXPECT_TRUE(parse_json(report_attempts(unknown, sum_all(unknown, rates(), "EUR"), ReportFormat::kJson))["sum"]["cost"]
                  .is_null());
  const std::string csv = report_attempts(records(), s, ReportFormat::kCsv);
  CsvReader reader(csv, "");
  std::vector<std::string> header, cells;
  ASSERT_TRUE(reader.next(header));
  int rows = 0;
  while (reader.next(cells)) {
    ASSERT_EQ(cells.size(), header.size());
    const auto cost = static_cast<size_t>(std::find(header.begin(), header.end(), "cost") - header.begin());
    EXPECT_EQ(cells[cost], rows == 0 ? "10" : rows == 1 ? "" : "0.5");
    EXPECT_TRUE(rows != 1 || cells.back() == "cost: no price, \"really\"");
    ++rows;
  }
  EXPECT_EQ(rows, 3);
}

TEST(Report, OneJobShowsPredictedBesideActual) {
  const auto all = records();
  const std::string text = report_job({all[0]}, sum_all({all[0]}, rates(), "EUR"));
  EXPECT_NE(text.find("-10.0 %"), std::string::npos) << text;  // cost 9 for 10
  EXPECT_NE(text.find("runner-up c1/a100 would have cost 12.50 EUR"), std::string::npos) << text;
  EXPECT_NE(text.find("1.500 s"), std::string::npos) << text;
  EXPECT_NE(report_job({all[1]}, sum_all({all[1]}, rates(), "EUR")).find("unknown cost: no price"), std::string::npos);
}

TEST(Csv, Quotes) {
  CsvReader r(
      "\xEF\xBB\xBF"
      "a,b\r\n\"x,\"\"y\"\"\n z\",\n\n,3",
      "f");
  std::vector<std::string> c;
  ASSERT_TRUE(r.next(c));
  EXPECT_EQ(c, (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(r.next(c));
  EXPECT_EQ(c, (std::vector<std::string>{"x,\"y\"\n z", ""}));
  ASSERT_TRUE(r.next(c));
  EXPECT_EQ(c, (std::vector<std::string>{"", "3"}));
  EXPECT_FALSE(r.next(c));
  EXPECT_EQ(csv_cell("a\"b,c"), "\"a\"\"b,c\"");
}

}  // namespace
}  // namespace shardfit::pricing
