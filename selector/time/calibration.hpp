// A machine's own rates, measured by `shardfit-train --probe rates` with the runtime's kernels and collectives. By them
// the device "cpu" is predicted. Measured, stored and loaded by selector/calibrate.
#pragma once
#include <string>
#include <vector>

namespace shardfit::timing {

// Seconds per element of a kernel over arrays larger than the caches, forward and backward.
struct KernelRate {
  double forward = 0, backward = 0;
};

// One matrix product of a linear layer over m positions, in features k, out features n; seconds.
struct GemmSample {
  double m = 0, k = 0, n = 0;
  double forward = 0;  // y = x W^T
  double input = 0;    // dx = dy W
  double weight = 0;   // dW += dy^T x
};

// Causal attention of one sequence; seconds.
struct AttentionSample {
  double sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double forward = 0, backward = 0;
};

struct TransferSample {
  double bytes = 0;  // in total: what every rank holds after the gather, or brings to the reduction
  double seconds = 0;
};

// A measured step of the model that `config` (a Hugging Face config.json) describes, on all the ranks, sharded at
// `stage`; seconds.
struct StepSample {
  std::string config;
  int sequence = 0, micro_batch = 1, stage = 0;
  double compute = 0, communication = 0, update = 0;
};

// Rates with `ranks` processes of `threads` threads busy at once: two busy ranks on two cores share caches and memory.
struct BusyRates {
  int ranks = 1, threads = 1;
  std::string type = "fp32";    // of weights and activations: fp32 | bf16
  std::string as_of, software;  // RFC 3339; version of shardfit-train
  bool quick = true;
  // Share of the processor that other programs took meanwhile. The rates below are processor time, free of it; 0 for
  // several threads, whose rates are wall time.
  double disturbed = 0;

  std::vector<GemmSample> gemms;
  std::vector<AttentionSample> attention;
  KernelRate rms_norm, layer_norm, rope, gated, activation, residual;
  KernelRate cross_entropy;  // per logit
  KernelRate embedding;      // per hidden element looked up, and scattered back
  double adamw = 0;          // seconds per parameter that a rank updates
  double norm = 0;           // seconds per element of the gradients' norm
  double clear = 0;          // seconds per element copied
  std::vector<TransferSample> all_gather, reduce_scatter, all_reduce;  // by size, ascending; empty for one rank
  // Whole steps of small models, and what they took over what the rates above predict of them: caches between kernels,
  // waiting for the other ranks, the engine's own work. 1 where no step was measured.
  std::vector<StepSample> steps;
  double compute_factor = 1, communication_factor = 1, update_factor = 1;
};

struct Calibration {
  std::string cpu;               // model name as /proc/cpuinfo gives it
  int cores = 0;                 // that the measuring process could use
  std::vector<BusyRates> rates;  // by (ranks, threads)

  // The rates measured nearest to `ranks` x `threads` (0 threads: all cores over the ranks) with that type; another
  // type's where it was not measured; nullptr when there are none. `exact`: measured just so.
  const BusyRates* find(int ranks, int threads, const std::string& type, bool& exact) const;
};

}  // namespace shardfit::timing
