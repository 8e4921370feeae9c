#include "selector/decide/confidence.hpp"

#include <algorithm>
#include <cmath>

namespace shardfit::decide {

namespace {
double phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
}  // namespace

double error_correlation(bool same_device, bool same_offload) {
  if (same_device) return same_offload ? 0.95 : 0.5;
  return same_offload ? 0.7 : 0.3;
}

double confidence(double sigma_chosen, const std::vector<Rival>& rivals) {
  constexpr int kPoints = 41;
  double sum = 0, weight_sum = 0;
  for (int i = 0; i < kPoints; ++i) {
    const double e = -4.0 + 8.0 * i / (kPoints - 1);  // the chosen one's own error, in standard deviations
    const double weight = std::exp(-0.5 * e * e);
    double all = 1;
    for (const auto& r : rivals) {
      const double own = std::sqrt(std::max(0.0, 1 - r.correlation)),
                   shared = std::sqrt(std::clamp(r.correlation, 0.0, 1.0));
      // What does not cancel: each one's own part, and the difference of the shared parts' sizes.
      const double spread = std::hypot(own * r.sigma, shared * (r.sigma - sigma_chosen));
      const double distance = r.log_ratio - own * sigma_chosen * e;
      all *= spread > 1e-12 ? phi(distance / spread) : (distance >= 0 ? 1.0 : 0.0);
    }
    sum += weight * all;
    weight_sum += weight;
  }
  return rivals.empty() ? 1.0 : sum / weight_sum;
}

}  // namespace shardfit::decide
