// How sure it is that the chosen offer is the cheapest, the errors of the predictions being correlated.
#pragma once
#include <vector>

namespace shardfit::decide {

// A rival as it stands to the chosen one.
struct Rival {
  double log_ratio = 0;    // ln(cost of the rival / cost of the chosen)
  double sigma = 0;        // of the rival's log cost, one standard deviation
  double correlation = 0;  // of its error with the chosen one's: same model and engine, same device or not
};

// Probability that no rival is cheaper. Each log cost is normal; the error shared with the chosen one (the same model,
// engine and software) cancels, what is left of each is independent of the others'. Integrated over the chosen one's
// own part, deterministic.
double confidence(double sigma_chosen, const std::vector<Rival>& rivals);

// Correlation of the errors of two settings of one job: measured as the share of variance that engine and model explain
// in the published throughputs (a device never seen costs less accuracy than an engine never seen).
double error_correlation(bool same_device, bool same_offload);

}  // namespace shardfit::decide
