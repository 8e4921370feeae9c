#include "selector/decide/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "regions/base/text.hpp"
#include "selector/decide/words.hpp"

namespace shardfit::decide {

namespace {

// Rows of cells, each column as wide as its widest cell; the last column is not padded.
std::string columns(const std::vector<std::vector<std::string>>& rows, const std::string& indent) {
  std::vector<size_t> widths;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (i >= widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i)
      line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], widths[i]) : row[i];
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string cost_words(const Candidate& c) {
  if (!c.cost.amount) return "unknown" + (c.cost.reason.empty() ? "" : " (" + c.cost.reason + ")");
  return money_words(c.cost.amount->amount(), c.cost.currency);
}

std::string cost_with_parts(const Candidate& c) {
  std::string s = cost_words(c);
  if (!c.cost.amount) return s;
  if (c.cost.low && c.cost.high)
    s += fmt::format(" ({} to {})", money_words(c.cost.low->amount(), c.cost.currency),
                     money_words(c.cost.high->amount(), c.cost.currency));
  std::vector<std::string> known, unknown;
  for (const auto& [name, amount] : c.cost.parts) {
    if (!amount) unknown.push_back(name);
    else if (amount->amount() > 0) known.push_back(name + " " + money_words(amount->amount(), c.cost.currency));
  }
  if (known.size() > 1) s += ": " + join(known, ", ");
  if (!unknown.empty()) s += "; " + join(unknown, ", ") + " unknown";
  return s;
}

// What a figure is told for one of: a CPU rank is no GPU.
const char* each_of(const Candidate& c) { return c.plan && c.plan->gpu == "cpu" ? "rank" : "GPU"; }

std::string memory_words(const Candidate& c) {
  const auto& m = c.estimate->memory;
  std::string s = format_gib(static_cast<double>(m.device_peak));
  if (c.device_capacity_bytes > 0) s += fmt::format(" of {}", format_gib(c.device_capacity_bytes));
  s += fmt::format(" a {} (95 % bound {}), peak in {}", each_of(c), format_gib(static_cast<double>(m.device_peak_high)),
                   m.phase);
  if (m.host > 0) s += fmt::format("; host {} a node", format_gib(static_cast<double>(m.host)));
  if (m.nvme > 0) s += fmt::format("; NVMe {} a node", format_gib(static_cast<double>(m.nvme)));
  return s;
}

void add_choice(std::string& out, const Decision& d) {
  const Candidate& c = *d.chosen;
  out += fmt::format("Choice: {} in {}{}\n", c.offer, c.region.empty() ? "an unknown region" : c.region,
                     d.decision == "tie" ? "  (a tie)" : "");
  std::vector<std::vector<std::string>> rows;
  if (!c.partition.empty()) rows.push_back({"partition", c.partition + (c.cluster.empty() ? "" : " of " + c.cluster)});
  if (c.plan) rows.push_back({"plan", plan_words(*c.plan)});
  if (c.estimate) {
    rows.push_back({"memory", memory_words(c)});
    if (c.estimate->time) {
      const auto& t = *c.estimate->time;
      rows.push_back({"step", fmt::format("{} ({} to {}), {:.0f} tokens/s a {}, bound by {}", format_duration(t.step),
                                          format_duration(t.step_low), format_duration(t.step_high),
                                          t.tokens_per_second_per_gpu, each_of(c), t.bound_by)});
    }
    rows.push_back({"time", fmt::format("{} ({} to {}) for {} steps, {}", format_duration(c.seconds),
                                        format_duration(c.seconds_low), format_duration(c.seconds_high), c.steps,
                                        c.estimate->basis)});
  }
  rows.push_back({"cost", cost_with_parts(c)});
  if (!d.tied_with.empty()) rows.push_back({"tied with", join(d.tied_with, ", ")});
  if (d.confidence)
    rows.push_back({"confidence", fmt::format("{:.0f} % that it is the cheapest", 100 * *d.confidence)});
  if (d.runner_up) {
    std::string runner = d.runner_up->offer;
    if (d.runner_up->cost)
      runner += ", " + money_words(*d.runner_up->cost, d.currency) + " in " + format_duration(d.runner_up->seconds);
    rows.push_back({"runner-up", runner + ": " + d.runner_up->why});
  }
  for (const auto& flag : c.flags) rows.push_back({"flag", flag});
  out += columns(rows, "  ");
}

void add_candidates(std::string& out, const Decision& d) {
  if (d.candidates.size() < 2) return;
  out += "\nCandidates (fastest for their cost first, then the best of each other offer)\n";
  std::vector<std::vector<std::string>> rows = {{"offer", "region", "cost", "time", "memory", "plan"}};
  for (const auto& c : d.candidates)
    rows.push_back({c.offer, c.region, cost_words(c), c.plan ? format_duration(c.seconds) : "-",
                    c.estimate ? format_gib(static_cast<double>(c.estimate->memory.device_peak)) : "-",
                    (c.plan ? plan_words(*c.plan) : std::string("-")) +
                        (c.estimate && c.estimate->fits != "yes" ? "  [memory " + c.estimate->fits + "]" : "")});
  out += columns(rows, "  ");
}

void add_rejected(std::string& out, const Decision& d) {
  if (d.rejected.empty()) return;
  out += "\nRejected\n";
  std::vector<std::vector<std::string>> rows = {{"offer", "region", "rule", "reason"}};
  for (const auto& r : d.rejected) rows.push_back({r.offer, r.region, r.rule, r.reason});
  const std::string table = columns(rows, "  ");
  size_t at = 0;
  for (size_t i = 0; i < rows.size(); ++i) {  // the nearest relaxation stands under its row
    const size_t end = table.find('\n', at);
    out += table.substr(at, end - at + 1);
    at = end + 1;
    if (i > 0 && !d.rejected[i - 1].nearest.empty()) out += "      nearest: " + d.rejected[i - 1].nearest + "\n";
  }
}

std::string number(double v) {
  const double a = std::fabs(v);
  return a >= 1000 ? fmt::format("{:.0f}", v) : a >= 1 ? fmt::format("{:.2f}", v) : fmt::format("{:.3g}", v);
}

void add_flips(std::string& out, const Decision& d) {
  if (d.flips.empty()) return;
  out += "\nWhat would change it\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& f : d.flips) {
    const bool duration = f.what == "deadline";
    rows.push_back({f.what,
                    fmt::format("from {} to {}", duration ? format_duration(f.from) : number(f.from),
                                duration ? format_duration(f.to) : number(f.to) + " " + f.unit),
                    "then " + f.then});
  }
  out += columns(rows, "  ");
}

}  // namespace

std::string table(const Decision& d, const job::Job& job) {
  std::string out;
  if (d.chosen) add_choice(out, d);
  else out += "Nothing satisfies the limits" + (job.file.empty() ? std::string() : " of " + job.file) + "\n";
  if (!d.pins.empty()) out += fmt::format("  pins: {}\n", join(d.pins, " & "));
  add_candidates(out, d);
  add_rejected(out, d);
  add_flips(out, d);
  std::vector<std::string> assumed = d.assumed;
  if (d.chosen && d.chosen->estimate)
    assumed.insert(assumed.end(), d.chosen->estimate->assumed.begin(), d.chosen->estimate->assumed.end());
  if (!assumed.empty()) {
    out += "\nAssumed\n";
    for (const auto& line : assumed) out += "  " + line + "\n";
  }
  return out;
}

std::string one_line(const Decision& d) {
  if (!d.chosen) {
    std::vector<std::string> why;
    for (const auto& r : d.rejected)
      if (why.size() < 3) why.push_back(r.offer + ": " + r.rule);
    return "nothing satisfies the limits" +
           (why.empty() ? "" : " (" + join(why, "; ") + (d.rejected.size() > 3 ? "; ..." : "") + ")");
  }
  const auto& c = *d.chosen;
  std::string s = c.offer;
  if (c.plan) s += ": " + plan_words(*c.plan) + ", " + format_duration(c.seconds);
  return s + ", " + cost_words(c);
}

}  // namespace shardfit::decide
