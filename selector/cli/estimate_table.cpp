#include "selector/cli/estimate_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "regions/base/text.hpp"
#include "selector/decide/table.hpp"

namespace shardfit::cli {

namespace {

std::string gib(std::int64_t bytes) { return format_gib(static_cast<double>(bytes)); }

void add_memory(std::string& out, const search::Estimated& e) {
  const auto& m = e.estimate.memory;
  const double capacity = e.capacity_bytes;
  out += fmt::format("\nMemory of the fullest GPU, peak in {}\n", m.phase);
  out +=
      fmt::format("  {:<22} {:>12}   95 % bound {}\n", "allocated", gib(m.allocated_peak), gib(m.allocated_peak_high));
  out += fmt::format("  {:<22} {:>12}\n", "reserved", gib(m.reserved_peak));
  out += fmt::format("  {:<22} {:>12}   95 % bound {}{}\n", "device", gib(m.device_peak), gib(m.device_peak_high),
                     capacity > 0 ? " of " + format_gib(capacity) : "");
  out += fmt::format("  {:<22} {:>12}{}\n", "fits", e.estimate.fits, e.memory_why.empty() ? "" : "   " + e.memory_why);
  if (m.host > 0 || m.host_pinned > 0)
    out += fmt::format("  {:<22} {:>12}   pinned {}\n", "host, a node", gib(m.host), gib(m.host_pinned));
  if (m.nvme > 0) out += fmt::format("  {:<22} {:>12}\n", "NVMe, a node", gib(m.nvme));
  if (!m.terms.empty()) {
    size_t width = 22;
    for (const auto& term : m.terms) width = std::max(width, term.name.size());
    out += "\nAlive at the peak\n";
    for (const auto& term : m.terms)
      out += fmt::format(
          "  {:<{}} {:>12}  {:>5.1f} %\n", term.name, width, gib(term.bytes),
          m.device_peak > 0 ? 100.0 * static_cast<double>(term.bytes) / static_cast<double>(m.device_peak) : 0.0);
  }
  if (m.by_stage.size() > 1) {
    out += "\nPipeline stages                 allocated     reserved       device\n";
    for (size_t i = 0; i < m.by_stage.size(); ++i)
      out += fmt::format("  {:<22} {:>12} {:>12} {:>12}\n", "stage " + std::to_string(i),
                         gib(m.by_stage[i].allocated_peak), gib(m.by_stage[i].reserved_peak),
                         gib(m.by_stage[i].device_peak));
  }
}

void add_time(std::string& out, const TimeEstimate& t) {
  out += fmt::format("\nOne optimizer step, bound by {}\n", t.bound_by);
  out += fmt::format("  {:<22} {:>12}   {} to {}\n", "step", format_duration(t.step), format_duration(t.step_low),
                     format_duration(t.step_high));
  out += fmt::format("  {:<22} {:>12.0f}\n", "tokens/s a GPU", t.tokens_per_second_per_gpu);
  std::vector<std::pair<std::string, double>> parts(t.parts.begin(), t.parts.end());
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [name, seconds] : parts)
    if (seconds > 0) {
      std::string words = name;
      std::replace(words.begin(), words.end(), '_', ' ');
      out += fmt::format("  {:<22} {:>12}  {:>5.1f} %\n", words, format_duration(seconds),
                         t.step > 0 ? 100 * seconds / t.step : 0.0);
    }
}

}  // namespace

std::string estimate_table(const JobSetting& s, const search::Estimated& e) {
  std::string out =
      fmt::format("{} ({}), {} parameters, {} trainable, {} tokens a sequence\n", s.job.model, s.model->family,
                  format_count(static_cast<double>(e.estimate.parameters_total)),
                  format_count(static_cast<double>(e.estimate.parameters_trainable)), s.job.sequence_length);
  out += fmt::format("{} on {}\n", s.job.framework.name, decide::plan_words(s.plan));
  add_memory(out, e);
  if (e.estimate.time) add_time(out, *e.estimate.time);
  out += fmt::format("\nBasis: {}\n", e.estimate.basis);
  if (!e.estimate.assumed.empty()) {
    out += "Assumed\n";
    for (const auto& line : e.estimate.assumed) out += "  " + line + "\n";
  }
  return out;
}

}  // namespace shardfit::cli
