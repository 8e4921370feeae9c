// How far off a predicted step may be, from facts of job, plan and host alone.
#pragma once
#include "selector/job/plan.hpp"
#include "selector/time/collectives.hpp"
#include "selector/time/device_rates.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

// Standard deviation of log(step). `attention_share`: share of the step in attention cores whose kernel was inferred,
// not stated.
double range_sigma(const Work& work, const job::Plan& plan, const DeviceRates& rates, const Links& links,
                   bool engine_measured, double attention_share);
// The range is step x exp(+-kRangeWidth sigma): nine in ten, if the errors were normal.
inline constexpr double kRangeWidth = 1.645;

}  // namespace shardfit::timing
