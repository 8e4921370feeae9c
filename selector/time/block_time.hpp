// Seconds of one block (or of the head) on one GPU, forward, backward and recomputation, before any communication.
//
// time_findings.md's split: matrix products, attention, element-wise traffic, adapters, dequantization, each the larger
// of its arithmetic and its memory time, with the CPU's launch time as a floor.
#pragma once
#include "selector/job/plan.hpp"
#include "selector/time/attention_kernels.hpp"
#include "selector/time/device_rates.hpp"
#include "selector/time/engines.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

// What a plan makes of the job on one GPU.
struct Share {
  double micro_batch = 1;
  double tensor = 1, context = 1, expert = 1;
  double sequence_parallel = 1;  // = tensor where norms and residuals are split too
  double nodes = 1;
  bool sharded = false;  // stage 3
  enum class Recompute { kNone, kFull, kSelectiveOp, kSelectiveOpAllCompute, kAttention } recompute = Recompute::kNone;
  double recompute_every = 1;
};

Share share_of(const job::Plan& plan, bool sharded);

struct Passes {
  double forward = 0, backward = 0, recompute = 0;
};

// Matrix product [m, k] x [k, n]: max(FLOPs at the sustained rate with small sides punished, traffic) + launch.
double gemm_seconds(double m, double k, double n, double flops_per_second, double bytes_per_second);

// `launch_bound` is set where the CPU's launches, not the GPU, decide.
Passes block_seconds(const Work& work, const BlockWork& block, const Share& share, const DeviceRates& rates,
                     const EngineRow& engine, const AttentionKernel& kernel);

// Final norm, output projection and loss of one micro batch; recompute stays 0 (heads are not check-pointed).
Passes head_seconds(const Work& work, const Share& share, const DeviceRates& rates);

// The attention cores alone: one forward of every layer (what a wrong guess of the kernel would change).
double attention_forward_seconds(const Work& work, const BlockWork& block, const Share& share, const DeviceRates& rates,
                                 const AttentionKernel& kernel);

}  // namespace shardfit::timing
