#include "selector/search/probes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shardfit::search {

namespace {

Correction mean_ratio(const std::vector<std::pair<double, double>>& points) {
  double sum = 0;
  for (const auto& [x, y] : points) sum += std::log(y / x);
  return {.scale = std::exp(sum / static_cast<double>(points.size()))};
}

double spread_of(const std::vector<std::pair<double, double>>& points, const Correction& c) {
  double sum = 0;
  for (const auto& [x, y] : points) sum += std::pow(std::log(y / std::max(c.apply(x), 1e-300)), 2);
  return std::sqrt(sum / static_cast<double>(points.size()));
}

std::int64_t scaled(std::int64_t bytes, double factor) {
  return static_cast<std::int64_t>(std::llround(std::min(static_cast<double>(bytes) * factor, 4e18)));
}

void correct_time(TimeEstimate& t, const Correction& c, bool several) {
  const double factor = std::max(c.apply(t.step), 1e-9) / t.step;
  const double sigma = std::max(c.spread, several ? 0.02 : 0.03);
  t.step *= factor;
  t.step_low = std::max(t.step_low * factor, t.step * std::exp(-2 * sigma));
  t.step_high = std::min(t.step_high * factor, t.step * std::exp(2 * sigma));
  t.tokens_per_second_per_gpu /= factor;
  for (auto& [name, seconds] : t.parts) seconds *= factor;
}

// Takes `bytes` off the terms, each in proportion to its size.
void shrink(std::vector<MemoryTerm>& terms, std::int64_t bytes) {
  std::int64_t sum = 0, left = bytes;
  for (const auto& t : terms) sum += t.bytes;
  for (auto& t : terms) {
    const auto part = std::min(
        left, scaled(t.bytes, static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(sum, 1))));
    t.bytes -= part;
    left -= part;
  }
  if (!terms.empty()) terms.front().bytes -= left;
}

// The allocated peak moves by the correction; segments and what nvidia-smi shows move by as many bytes. What was
// measured beyond the prediction is a term of its own, so that the terms still sum to the device's peak.
void correct_memory(Estimated& e, const Correction& c, bool several) {
  auto& m = e.estimate.memory;
  const double corrected = std::max(c.apply(static_cast<double>(m.allocated_peak)), 0.0);
  const double factor = corrected / static_cast<double>(m.allocated_peak);
  const std::int64_t outside = m.device_peak - m.reserved_peak,
                     difference = scaled(m.allocated_peak, factor) - m.allocated_peak;
  m.allocated_peak += difference;
  m.reserved_peak += difference;
  m.device_peak += difference;
  for (auto& stage : m.by_stage)
    stage.allocated_peak += difference, stage.reserved_peak += difference, stage.device_peak += difference;
  m.allocated_peak_high = scaled(m.allocated_peak, std::exp(2 * std::max(c.spread, several ? 0.01 : 0.02)));
  const std::int64_t needed = m.allocated_peak_high + outside;  // cached segments are given back before a job runs out
  m.device_peak_high = std::max(needed, m.device_peak);
  if (difference > 0) m.terms.push_back({"measured beyond the prediction", difference});
  if (difference < 0) shrink(m.terms, -difference);
  std::stable_sort(m.terms.begin(), m.terms.end(),
                   [](const MemoryTerm& a, const MemoryTerm& b) { return a.bytes > b.bytes; });
  if (e.capacity_bytes > 0) {
    const double best = static_cast<double>(m.allocated_peak + outside), worst = static_cast<double>(needed);
    if (best > e.capacity_bytes) e.estimate.fits = "no";
    else if (worst > e.capacity_bytes && e.estimate.fits == "yes") e.estimate.fits = "unsure";
    else if (worst <= e.capacity_bytes && e.estimate.memory.host == 0) e.estimate.fits = "yes";
  }
}

}  // namespace

std::optional<Correction> correction_of(const std::vector<std::pair<double, double>>& points) {
  if (points.empty()) return std::nullopt;
  Correction c = mean_ratio(points);
  const auto [least, most] = std::minmax_element(points.begin(), points.end());
  if (most->first > 1.2 * least->first) {
    // Least squares of (scale x + offset - y) / y.
    double xx = 0, x1 = 0, one = 0, xy = 0, y1 = 0;
    for (const auto& [x, y] : points) {
      const double u = x / y, v = 1 / y;
      xx += u * u;
      x1 += u * v;
      one += v * v;
      xy += u;
      y1 += v;
    }
    const double determinant = xx * one - x1 * x1;
    if (determinant > 1e-12 * xx * one) {
      const Correction line{.scale = (xy * one - y1 * x1) / determinant, .offset = (xx * y1 - x1 * xy) / determinant};
      if (line.scale > 1.0 / 3 && line.scale < 3 && line.apply(least->first) > 0 && line.offset > -0.5 * least->second)
        c = line;
    }
  }
  c.spread = spread_of(points, c);
  return c;
}

void rest_on_probes(Estimated& e, const std::vector<Probe>& probes) {
  std::vector<std::pair<double, double>> steps, peaks;
  for (const auto& p : probes) {
    if (p.predicted_step > 0 && p.measured_step > 0) steps.emplace_back(p.predicted_step, p.measured_step);
    if (p.predicted_peak > 0 && p.measured_peak > 0) peaks.emplace_back(p.predicted_peak, p.measured_peak);
  }
  const auto sizes = [](const auto& points) { return points.size() > 1; };
  if (const auto c = correction_of(steps); c && e.estimate.time && e.estimate.time->step > 0) {
    correct_time(*e.estimate.time, *c, sizes(steps));
    e.estimate.basis = "probed";
  }
  if (const auto c = correction_of(peaks); c && e.estimate.memory.allocated_peak > 0) {
    correct_memory(e, *c, sizes(peaks));
    e.estimate.basis = "probed";
  }
}

}  // namespace shardfit::search
