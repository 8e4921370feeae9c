#include "selector/time/cpu_step.hpp"

#include <algorithm>
#include <cmath>

#include "regions/base/error.hpp"

namespace shardfit::timing {
namespace {

double sample_seconds(const GemmSample& s, Product product) {
  return product == Product::kForward ? s.forward : product == Product::kInput ? s.input : s.weight;
}

// Seconds by size, linear between samples, proportional beyond the largest, constant below the smallest.
double transfer_seconds(const std::vector<TransferSample>& samples, double bytes) {
  if (samples.empty() || bytes <= 0) return 0;
  const TransferSample* below = nullptr;
  for (const TransferSample& s : samples) {
    if (bytes <= s.bytes) {
      if (!below) return s.seconds;
      const double t = (bytes - below->bytes) / (s.bytes - below->bytes);
      return below->seconds + t * (s.seconds - below->seconds);
    }
    below = &s;
  }
  return below->seconds * bytes / below->bytes;
}

// Attention scales with pairs x heads x dimension; the rate is that of the sample nearest in sequence length.
struct Attention {
  double forward = 0, backward = 0;
};
Attention attention_seconds(const BusyRates& rates, const AttentionCore& core, double sequence) {
  Attention out;
  const AttentionSample* best = nullptr;
  const auto distance = [&](const AttentionSample& s) {
    return std::abs(std::log(s.sequence / sequence)) + 0.5 * std::abs(std::log(s.head_dim / core.query_dim));
  };
  for (const AttentionSample& s : rates.attention)
    if (!best || distance(s) < distance(*best)) best = &s;
  if (!best) return out;
  const double scale = sequence * sequence * core.heads * core.query_dim / (best->sequence * best->sequence * best->heads * best->head_dim);
  out.forward = best->forward * scale;
  out.backward = best->backward * scale;
  return out;
}

}  // namespace

double gemm_seconds(const BusyRates& rates, Product product, double m, double k, double n) {
  // The exponent is high so that the nearest samples decide; a sample at distance 0 decides alone.
  double weights = 0, inverse_rate = 0;
  for (const GemmSample& s : rates.gemms) {
    const double a = std::log(s.m / m), b = std::log(s.k / k), c = std::log(s.n / n), d2 = a * a + b * b + c * c;
    const double w = 1 / (d2 * d2 + 1e-6);
    weights += w;
    inverse_rate += w * sample_seconds(s, product) / (2 * s.m * s.k * s.n);
  }
  return weights > 0 ? 2 * m * k * n * inverse_rate / weights : 0;
}

StepTime cpu_step(const Work& work, const job::Plan& plan, const Calibration& calibration) {
  bool exact = false;
  const BusyRates* found = calibration.find(static_cast<int>(std::min<std::int64_t>(plan.gpus_per_node, 1 << 20)),
                                            static_cast<int>(std::min(plan.cpus_per_gpu.value_or(0), 1e6)), exact);
  if (!found)
    throw Error("not_calibrated", "/plan/gpu", "the device \"cpu\" has no measured rates on this machine", "run shardfit calibrate --quick");
  const BusyRates& rates = *found;
  StepTime time;
  const double tokens_micro = static_cast<double>(plan.micro_batch) * work.sequence;
  const double steps = static_cast<double>(plan.gradient_accumulation);
  const double sequences = static_cast<double>(plan.micro_batch);
  const bool recompute = plan.checkpointing.kind == "full";
  double compute = 0;
  for (const BlockWork& block : work.blocks) {
    double forward = 0, backward = 0;
    for (const Linear& l : block.linears) {
      forward += gemm_seconds(rates, Product::kForward, tokens_micro, l.in, l.out);
      backward += gemm_seconds(rates, Product::kInput, tokens_micro, l.in, l.out) +
                  l.weight_gradient * gemm_seconds(rates, Product::kWeight, tokens_micro, l.in, l.out);
    }
    for (const AttentionCore& core : block.attention) {
      const Attention a = attention_seconds(rates, core, work.sequence);
      forward += sequences * a.forward;
      backward += sequences * a.backward;
    }
    const auto add = [&](double width, const KernelRate& rate) {
      forward += tokens_micro * width * rate.forward;
      backward += tokens_micro * width * rate.backward;
    };
    add(block.rms_width, rates.rms_norm);
    add(block.layer_norm_width, rates.layer_norm);
    add(block.rope_width, rates.rope);
    add(block.gated_width, rates.gated);
    add(block.activation_width + block.python_gelu_width, rates.activation);
    add(block.residual_width, rates.residual);
    compute += block.count * (forward + backward + (recompute ? forward : 0));
  }
  if (work.logits_width > 0) {
    compute += gemm_seconds(rates, Product::kForward, tokens_micro, work.hidden, work.logits_width) +
               gemm_seconds(rates, Product::kInput, tokens_micro, work.hidden, work.logits_width) +
               gemm_seconds(rates, Product::kWeight, tokens_micro, work.hidden, work.logits_width);
    compute += tokens_micro * work.logits_width * (rates.cross_entropy.forward + rates.cross_entropy.backward);
  }
  compute += tokens_micro * work.hidden * (rates.embedding.forward + rates.embedding.backward);
  time.compute = compute * steps;

  const double ranks = static_cast<double>(plan.data_parallel()), bytes = 4;
  const double shard = plan.sharding.stage >= 1 ? static_cast<double>(plan.sharding.shard_degree) : 1;
  const double local = work.trainable / shard;
  if (ranks > 1) {
    if (plan.sharding.stage == 3) {
      const double block_bytes = work.layers > 0 ? work.block_parameters / work.layers * bytes : 0, root = (work.parameters - work.block_parameters) * bytes;
      const double gathers = work.layers * transfer_seconds(rates.all_gather, block_bytes) + transfer_seconds(rates.all_gather, root);
      const double reduces =
          work.layers * transfer_seconds(rates.reduce_scatter, block_bytes) + transfer_seconds(rates.reduce_scatter, root);
      time.communication_exposed = steps * (2 * gathers + reduces);
    } else {
      time.communication_exposed = transfer_seconds(rates.reduce_scatter, work.trainable * bytes) +
                                   transfer_seconds(rates.all_gather, work.trainable * bytes);
    }
  }
  time.compute += local * (rates.adamw + rates.norm + rates.clear) + rates.step_overhead;
  time.sigma = exact ? 0.08 : 0.20;
  return time;
}

}  // namespace shardfit::timing
