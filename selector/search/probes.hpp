// Measured runs of the same setup at other sizes, and what they say about the prediction.
#pragma once
#include <optional>
#include <vector>

#include "selector/search/estimator.hpp"

namespace shardfit::search {

// A run that was measured, beside what was predicted of it.
struct Probe {
  double predicted_step = 0, measured_step = 0;  // seconds; measured 0 = not measured
  double predicted_peak = 0, measured_peak = 0;  // allocated bytes; measured 0 = not measured
};

// measured ~ scale x predicted + offset.
struct Correction {
  double scale = 1, offset = 0;
  double spread = 0;  // of ln(measured / corrected) over the probes, one standard deviation
  double apply(double predicted) const { return scale * predicted + offset; }
};

// One probe, or several of about one size: the mean ratio. Two sizes or more: a line through them by least squares of
// the relative error, its offset a cost that does not grow (launches, host work, workspaces); where the line would be
// absurd (scale outside [1/3, 3], a negative value at 0 that outweighs the smallest probe) the mean ratio. nullopt
// without probes.
std::optional<Correction> correction_of(const std::vector<std::pair<double, double>>& predicted_and_measured);

// Lays the probes over an estimate: step time and its range, the allocated peak with everything that stands on it, the
// verdict, and basis "probed". The range narrows to the probes' own spread, at least 3 % for one size and 2 % for
// several.
void rest_on_probes(Estimated& estimated, const std::vector<Probe>& probes);

}  // namespace shardfit::search
