// One optimizer step on CPU ranks, from a machine's measured rates.
#pragma once
#include "selector/job/plan.hpp"
#include "selector/time/calibration.hpp"
#include "selector/time/time.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

enum class Product { kForward, kInput, kWeight };

// Seconds of one product, interpolated between the measured shapes: its rate (FLOP/s) is a mean over the samples weighted by their
// distance in the logarithms of the three sides.
double gemm_seconds(const BusyRates& rates, Product product, double m, double k, double n);

// Parts of the step only: `step`, the range and the throughput are the caller's to fill in; `sigma` is set.
StepTime cpu_step(const Work& work, const job::Plan& plan, const Calibration& calibration);

}  // namespace shardfit::timing
