// Times a piece of work on all ranks at once.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "runtime/comm/collective.hpp"

namespace shardfit::probe {

class Stopwatch {
 public:
  // Each measurement repeats for at least `seconds`, and at least three times.
  Stopwatch(comm::Collective& collective, double seconds) : collective_(collective), seconds_(seconds) {}

  // Median seconds of one call, averaged over the ranks. For work that a rank does alone: ranks repeat until their time is up, so that
  // all are busy all the time.
  template <typename Work>
  double alone(Work&& work) {
    work();
    collective_.barrier();
    std::vector<double> taken;
    const auto begin = Clock::now();
    do {
      const auto start = Clock::now();
      work();
      taken.push_back(since(start));
    } while (taken.size() < 3 || (since(begin) < seconds_ && taken.size() < 10000));
    return collective_.sum(median(taken)) / collective_.ranks();
  }

  // The same for collectives: every rank repeats equally often.
  template <typename Work>
  double together(Work&& work) {
    work();
    collective_.barrier();
    const auto once_begin = Clock::now();
    work();
    const double once = std::max(collective_.largest(since(once_begin)), 1e-7);
    const auto repeats = static_cast<std::size_t>(std::clamp(seconds_ / once, 5.0, 2000.0));
    std::vector<double> taken;
    for (std::size_t i = 0; i < repeats; ++i) {
      const auto start = Clock::now();
      work();
      taken.push_back(since(start));
    }
    return collective_.sum(median(taken)) / collective_.ranks();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
  static double median(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  comm::Collective& collective_;
  const double seconds_;
};

}  // namespace shardfit::probe
