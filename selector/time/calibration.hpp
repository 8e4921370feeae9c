// A machine's own rates, measured by `shardfit-train --probe rates` with the runtime's kernels and collectives, every rank of the plan
// busy at once. By them the device "cpu" is predicted. Stored and loaded by selector/calibrate.
#pragma once
#include <string>
#include <vector>

namespace shardfit::timing {

// Seconds per element of a kernel over large arrays, forward and backward.
struct KernelRate {
  double forward = 0, backward = 0;
};

// One matrix product of a linear layer over m positions, in features k, out features n.
struct GemmSample {
  double m = 0, k = 0, n = 0;
  double forward = 0;  // y = x W^T
  double input = 0;    // dx = dy W
  double weight = 0;   // dW += dy^T x
};

// Causal attention of one sequence.
struct AttentionSample {
  double sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double forward = 0, backward = 0;
};

struct TransferSample {
  double bytes = 0;    // in total: what every rank holds after the gather, or before the reduction
  double seconds = 0;
};

struct Calibration {
  // What it was measured on; the key under which it is stored.
  std::string cpu;              // model name as /proc/cpuinfo gives it
  int cores = 0;                // the process may use
  int ranks = 1, threads = 1;   // busy at once: ranks x threads
  std::string as_of, software;  // RFC 3339; version of shardfit-train
  bool quick = true;

  std::vector<GemmSample> gemms;
  std::vector<AttentionSample> attention;
  KernelRate rms_norm, layer_norm, rope, gated, activation, residual;
  KernelRate cross_entropy;            // per logit
  KernelRate embedding;                // per hidden element looked up, and scattered back
  double adamw = 0;                    // seconds per parameter
  double norm = 0;                     // seconds per element of the gradients' norm
  double clear = 0;                    // seconds per element set to zero or copied
  std::vector<TransferSample> all_gather, reduce_scatter;
  double step_overhead = 0;            // seconds of a step apart from all of these
};

}  // namespace shardfit::timing
