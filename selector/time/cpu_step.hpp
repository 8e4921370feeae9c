// One optimizer step on CPU ranks, from a machine's measured rates and the runtime's own list of events
// (selector/schedule/step.hpp).
#pragma once
#include "pricing/offers.hpp"
#include "selector/job/plan.hpp"
#include "selector/time/calibration.hpp"
#include "selector/time/time.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

enum class Product { kForward, kInput, kWeight };

// Seconds of one product, interpolated between the measured shapes: its rate (FLOP/s) is a mean over the samples
// weighted by their distance in the logarithms of the three sides.
double gemm_seconds(const BusyRates& rates, Product product, double m, double k, double n);

// What a rank of shardfit-train sends and receives: collectives a micro-step (gathers, reduces) and a step (all-reduces
// of stage 0), and the bytes of each, as build_step lists them.
struct CpuTraffic {
  double block_gathers = 0, root_gathers = 0, block_reduces = 0, root_reduces = 0;
  double all_reduces_block = 0, all_reduces_root = 0;
  double block_gather_bytes = 0, root_gather_bytes = 0, block_reduce_bytes = 0, root_reduce_bytes = 0;
};
CpuTraffic cpu_traffic(const Work& work, const job::Plan& plan);

// Seconds of a step by what the rates alone say, before any factor.
struct CpuParts {
  double compute = 0, communication = 0, update = 0;
};
CpuParts cpu_parts(const Work& work, const job::Plan& plan, const BusyRates& rates,
                   const pricing::Interconnect* interconnect = nullptr);

// Parts of the step only: `step`, the range and the throughput are the caller's to fill in; `sigma` is set.
// Throws Error{not_calibrated} where nothing was measured.
StepTime cpu_step(const Work& work, const job::Plan& plan, const Calibration& calibration,
                  const pricing::Interconnect* interconnect);

}  // namespace shardfit::timing
