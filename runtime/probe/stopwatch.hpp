// Times a piece of work on all ranks at once, as it would run on a machine that does nothing else.
//
// A rank of one thread is timed by its own processor time: other programs on the machine then do not count, and on a
// quiet machine it is the wall time (ranks wait by spinning, briefly). Several threads wait for one another by
// spinning, so there only the wall time tells.
#pragma once
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/comm/collective.hpp"

namespace shardfit::probe {

inline double clock_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double wall_seconds() { return clock_seconds(CLOCK_MONOTONIC); }
inline double work_seconds(int threads) {
  return clock_seconds(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC);
}

// A quarter of the values lie below: what disturbs a measurement only ever lengthens it.
inline double lower_quartile(std::vector<double>& values) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 4);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

class Stopwatch {
 public:
  // Each measurement repeats for at least `seconds`, and at least twice, after one call that warms up.
  Stopwatch(comm::Collective& collective, int threads, double seconds)
      : collective_(collective), threads_(threads), seconds_(seconds) {}

  // Seconds of one call, averaged over the ranks. For work that a rank does alone: ranks repeat until their time is up,
  // so that all are busy all the time.
  template <typename Work>
  double alone(Work&& work) {
    work();
    collective_.barrier();
    std::vector<double> taken;
    const double wall = wall_seconds(), processor = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    do {
      const double start = work_seconds(threads_);
      work();
      taken.push_back(work_seconds(threads_) - start);
    } while (taken.size() < 2 || (wall_seconds() - wall < seconds_ && taken.size() < 10000));
    wall_ += wall_seconds() - wall;
    processor_ += clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - processor;
    return collective_.sum(lower_quartile(taken)) / collective_.ranks();
  }

  // The same for collectives: every rank repeats equally often. Waiting ranks spin for a moment, then give their
  // processor away: what is counted is copying and the waiting of a quiet machine.
  template <typename Work>
  double together(Work&& work) {
    work();
    collective_.barrier();
    const double begin = wall_seconds();
    work();
    const double once = std::max(collective_.largest(wall_seconds() - begin), 1e-7);
    const auto repeats = static_cast<std::size_t>(std::clamp(seconds_ / once, 5.0, 2000.0));
    std::vector<double> taken;
    for (std::size_t i = 0; i < repeats; ++i) {
      const double start = work_seconds(threads_);
      work();
      taken.push_back(work_seconds(threads_) - start);
    }
    return collective_.sum(lower_quartile(taken)) / collective_.ranks();
  }

  // Share of the time in which other programs had this rank's processor; 0 where several threads hide it.
  double disturbed() const { return threads_ == 1 && wall_ > 0 ? std::clamp(1 - processor_ / wall_, 0.0, 1.0) : 0; }

 private:
  comm::Collective& collective_;
  const int threads_;
  const double seconds_;
  double wall_ = 0, processor_ = 0;
};

}  // namespace shardfit::probe
