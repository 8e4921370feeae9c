#include "pricing/report/report.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pricing/csv.hpp"
#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

using Ordered = nlohmann::ordered_json;

std::string when(std::int64_t t) { return t > 0 ? format_time(t) : ""; }
std::string count(const std::optional<double>& v) { return v ? fmt::format("{}", *v) : ""; }
std::string hours(double seconds) { return fmt::format("{:.3f}", seconds / 3600.0); }

// Columns of text; '>' at the head of a title sets it to the right.
std::string columns(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (size_t c = 0; c < titles.size(); ++c) {
    size_t w = titles[c].size() - 1;
    for (const auto& r : rows) w = std::max(w, r[c].size());
    widths.push_back(w);
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells, bool head) {
    std::string l;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string cell = head ? cells[c].substr(1) : cells[c];
      const std::string pad(widths[c] - cell.size(), ' ');
      l += (c ? "  " : "") + (titles[c][0] == '>' ? pad + cell : cell + pad);
    }
    while (!l.empty() && l.back() == ' ') l.pop_back();
    out += l + "\n";
  };
  line(titles, true);
  for (const auto& r : rows) line(r, false);
  return out;
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string out;
  for (size_t i = 0; i < cells.size(); ++i) out += (i ? "," : "") + csv_cell(cells[i]);
  return out + "\n";
}

// Where no record's cost is known the sum is unknown, not 0.
Ordered sum_json(const Sum& s) {
  const bool unknown = s.attempts > 0 && s.left_out == s.attempts;
  return {{"attempts", s.attempts},
          {"jobs", s.jobs},
          {"gpu_hours", s.gpu_hours},
          {"cost", unknown ? Ordered() : Ordered(s.cost.amount())},
          {"currency", s.cost.currency()},
          {"left_out", s.left_out},
          {"predicted", s.predicted ? Ordered(s.predicted->amount()) : Ordered()},
          {"actual_of_predicted", s.predicted ? Ordered(s.predicted_actual.amount()) : Ordered()}};
}

std::string sum_line(const Sum& s) {
  std::string out =
      fmt::format("{} attempts of {} jobs, {:.2f} GPU hours, {}", s.attempts, s.jobs, s.gpu_hours, s.cost.to_string());
  if (s.left_out) out += fmt::format(" without {} attempts whose cost is unknown", s.left_out);
  if (s.predicted)
    out += fmt::format("; predicted {} where {} was charged", s.predicted->to_string(), s.predicted_actual.to_string());
  return out + "\n";
}

std::string job_id(const LedgerRecord& r) {
  if (r.array_job_id) return fmt::format("{}_{}", *r.array_job_id, r.array_task_id.value_or(0));
  return std::to_string(r.job_id);
}

std::string reason(const LedgerRecord& r, const std::string& field) {
  for (const auto& [f, why] : r.unknown)
    if (f == field) return why;
  return "";
}

std::string difference(const std::optional<double>& predicted, const std::optional<double>& actual) {
  if (!predicted || !actual || *actual == 0) return "";
  return fmt::format("{:+.1f} %", (*predicted / *actual - 1) * 100);
}

}  // namespace

ReportFormat parse_report_format(std::string_view word) {
  if (word == "table") return ReportFormat::kTable;
  if (word == "csv") return ReportFormat::kCsv;
  if (word == "json") return ReportFormat::kJson;
  throw Error("unknown_word", "--format", "this version writes no \"" + std::string(word) + "\"",
              "formats: table, csv, json");
}

std::string report_attempts(const std::vector<LedgerRecord>& records, const Sum& total, ReportFormat format) {
  if (format == ReportFormat::kJson) {
    Ordered j{{"records", Ordered::array()}, {"sum", sum_json(total)}};
    for (const auto& r : records) j["records"].push_back(to_json(r));
    return j.dump(2, ' ', false, Ordered::error_handler_t::replace) + "\n";
  }
  if (format == ReportFormat::kCsv) {
    // clang-format off
    std::string out = csv_line({"cluster", "job_id", "restart", "array_job_id", "array_task_id", "submit", "start", "end", "state", "user", "account", "partition", "region", "nodes", "gpu", "gpus", "cpus", "seconds",
                                "billed_seconds", "price_amount", "price_currency", "price_per", "price_as_of", "cost", "currency", "predicted_seconds", "predicted_cost", "predicted_memory_peak", "predicted_step",
                                "measured_memory_peak", "measured_step", "runner_up_offer", "runner_up_cost", "pins", "plan", "unknown"});
    // clang-format on
    for (const auto& r : records) {
      std::vector<std::string> unknown;
      for (const auto& [field, why] : r.unknown) unknown.push_back(field + ": " + why);
      // clang-format off
      out += csv_line({r.cluster, std::to_string(r.job_id), std::to_string(r.restart), r.array_job_id ? std::to_string(*r.array_job_id) : "", r.array_task_id ? std::to_string(*r.array_task_id) : "", when(r.submit),
                       when(r.start), when(r.end), r.state, r.user, r.account, r.partition, r.region, std::to_string(r.nodes), r.gpu, std::to_string(r.gpus), std::to_string(r.cpus), count(r.seconds), count(r.billed_seconds),
                       r.price ? count(r.price->amount) : "", r.price ? r.price->currency : "", r.price ? r.price->per : "", r.price ? r.price->as_of : "", r.cost ? count(r.cost->amount()) : "", r.currency,
                       count(r.predicted.seconds), count(r.predicted.cost), count(r.predicted.memory_peak), count(r.predicted.step), count(r.measured.memory_peak), count(r.measured.step), r.runner_up.offer,
                       count(r.runner_up.cost), join(r.pins, "&"), r.plan.empty() ? "" : "sha256:" + r.plan, join(unknown, "; ")});
      // clang-format on
    }
    return out;
  }
  if (records.empty()) return "No attempts.\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& r : records)
    rows.push_back({job_id(r), r.restart ? std::to_string(r.restart) : "", r.state, r.user, r.account, r.partition,
                    r.region.empty() ? "?" : r.region,
                    r.gpus ? fmt::format("{} x {}", r.gpus, r.gpu.empty() ? "?" : r.gpu) : "-", hours(r.seconds),
                    r.predicted.seconds ? hours(*r.predicted.seconds) : "-", r.cost ? r.cost->to_string() : "unknown",
                    r.predicted.cost ? Money(*r.predicted.cost, r.currency).to_string() : "-"});
  std::string out = columns({"<JOB", ">RESTART", "<STATE", "<USER", "<ACCOUNT", "<PARTITION", "<REGION", "<DEVICES",
                             ">HOURS", ">PREDICTED", ">COST", ">PREDICTED"},
                            rows) +
                    sum_line(total);
  for (const auto& r : records)
    if (!r.cost) out += "  " + job_id(r) + ": " + reason(r, "cost") + "\n";
  return out;
}

std::string report_groups(const std::vector<Sum>& groups, const Sum& total, const std::string& by,
                          ReportFormat format) {
  if (format == ReportFormat::kJson) {
    Ordered j{{"by", by}, {"groups", Ordered::array()}, {"sum", sum_json(total)}};
    for (const auto& g : groups) {
      Ordered x{{by, g.key.empty() ? Ordered() : Ordered(g.key)}};
      x.update(sum_json(g));
      j["groups"].push_back(x);
    }
    return j.dump(2, ' ', false, Ordered::error_handler_t::replace) + "\n";
  }
  if (format == ReportFormat::kCsv) {
    std::string out = csv_line(
        {by, "attempts", "jobs", "gpu_hours", "cost", "currency", "left_out", "predicted", "actual_of_predicted"});
    for (const auto& g : groups)
      out += csv_line({g.key, std::to_string(g.attempts), std::to_string(g.jobs), count(g.gpu_hours),
                       count(g.cost.amount()), g.cost.currency(), std::to_string(g.left_out),
                       g.predicted ? count(g.predicted->amount()) : "",
                       g.predicted ? count(g.predicted_actual.amount()) : ""});
    return out;
  }
  if (groups.empty()) return "No attempts.\n";
  std::string title = by;
  for (char& c : title) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::vector<std::vector<std::string>> rows;
  for (const auto& g : groups)
    rows.push_back({g.key.empty() ? "unknown" : g.key, std::to_string(g.jobs), std::to_string(g.attempts),
                    fmt::format("{:.2f}", g.gpu_hours), g.cost.to_string(),
                    g.left_out ? std::to_string(g.left_out) : "", g.predicted ? g.predicted->to_string() : "-",
                    g.predicted ? g.predicted_actual.to_string() : "-"});
  return columns(
             {"<" + title, ">JOBS", ">ATTEMPTS", ">GPU HOURS", ">COST", ">LEFT OUT", ">PREDICTED", ">ACTUAL OF THESE"},
             rows) +
         sum_line(total);
}

std::string report_job(const std::vector<LedgerRecord>& attempts, const Sum& total) {
  std::string out;
  for (const auto& r : attempts) {
    out += fmt::format("Job {}{} on {}: {}, {}\n", job_id(r), r.restart ? fmt::format(" (restart {})", r.restart) : "",
                       r.cluster.empty() ? "the cluster" : r.cluster, r.state,
                       r.start ? when(r.start) + " to " + when(r.end) : "never started");
    out += fmt::format(
        "  {}{} in {}{}; user {}{}\n", r.nodes ? fmt::format("{} node{}, ", r.nodes, r.nodes == 1 ? "" : "s") : "",
        r.gpus ? fmt::format("{} x {}", r.gpus, r.gpu.empty() ? "unknown GPU" : r.gpu) : fmt::format("{} CPUs", r.cpus),
        r.region.empty() ? "an unknown region" : r.region,
        r.partition.empty() ? "" : " (partition " + r.partition + ")", r.user,
        r.account.empty() ? "" : ", account " + r.account);
    if (!r.pins.empty()) out += "  pins: " + join(r.pins, ", ") + "\n";
    if (r.price)
      out += fmt::format("  price: {:g} {} a {}{}{}\n", r.price->amount, r.price->currency,
                         r.price->per == "gpu_hour" ? "GPU hour" : "node hour",
                         r.price->as_of.empty() ? "" : " of " + r.price->as_of,
                         r.price->source.empty() ? "" : ", " + r.price->source);
    const auto memory = [](const std::optional<double>& b) { return b ? format_gib(*b) : std::string("-"); };
    const auto step = [](const std::optional<double>& s) { return s ? fmt::format("{:.3f} s", *s) : std::string("-"); };
    const std::optional<double> cost = r.cost ? std::optional(r.cost->amount()) : std::nullopt;
    // Decimals enough for small jobs: cents of a cent where the whole is below one unit.
    const auto money = [&](const std::optional<double>& v) {
      return v ? Money(*v, r.currency).to_string(std::fabs(*v) < 1 ? 4 : 2) : std::string("-");
    };
    out += columns(
        {"<  ", ">PREDICTED", ">ACTUAL", ">PREDICTED/ACTUAL"},
        {{"  time", r.predicted.seconds ? format_duration(*r.predicted.seconds) : "-", format_duration(r.seconds),
          difference(r.predicted.seconds, r.seconds)},
         {"  step", step(r.predicted.step), step(r.measured.step), difference(r.predicted.step, r.measured.step)},
         {"  memory peak", memory(r.predicted.memory_peak), memory(r.measured.memory_peak),
          difference(r.predicted.memory_peak, r.measured.memory_peak)},
         {"  cost", money(r.predicted.cost), money(cost), difference(r.predicted.cost, cost)}});
    for (const auto& [part, amount] : r.cost_parts) {
      const auto basis = std::find_if(r.basis.begin(), r.basis.end(), [&](const auto& b) { return b.first == part; });
      out += "    " + part + " " + money(amount.amount()) + (basis == r.basis.end() ? "" : ": " + basis->second) + "\n";
    }
    for (const auto& [field, basis] : r.basis)
      if (field == "seconds") out += "  " + basis + "\n";
    if (!r.runner_up.offer.empty())
      out += "  runner-up " + r.runner_up.offer +
             (r.runner_up.cost ? " would have cost " + money(r.runner_up.cost) : ": its cost is unknown") + "\n";
    std::vector<std::pair<std::string, std::string>> reasons;  // one reason may leave several fields unknown
    for (const auto& [field, why] : r.unknown) {
      const auto known = std::find_if(reasons.begin(), reasons.end(), [&](const auto& x) { return x.first == why; });
      if (known == reasons.end()) reasons.emplace_back(why, field);
      else known->second += ", " + field;
    }
    for (const auto& [why, fields] : reasons) out += "  unknown " + fields + ": " + why + "\n";
  }
  if (attempts.size() > 1) out += sum_line(total);
  return out;
}

}  // namespace shardfit::pricing
