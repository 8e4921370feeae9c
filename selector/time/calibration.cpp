#include "selector/time/calibration.hpp"

#include <cmath>
#include <limits>

namespace shardfit::timing {

const BusyRates* Calibration::find(int ranks, int threads, const std::string& type, bool& exact) const {
  const BusyRates* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  if (threads <= 0) threads = ranks > 0 && cores > ranks ? cores / ranks : 1;
  for (const BusyRates& candidate : rates) {
    // How many ranks contend matters most; threads change the rate of each.
    const double distance = 2 * std::abs(std::log2(static_cast<double>(candidate.ranks) / ranks)) +
                            std::abs(std::log2(static_cast<double>(candidate.threads) / threads)) +
                            (candidate.type == type ? 0 : 20);
    if (distance < least) {
      least = distance;
      best = &candidate;
    }
  }
  exact = least < 1e-9;
  return best;
}

}  // namespace shardfit::timing
