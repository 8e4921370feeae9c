#include "selector/time/cpu_step.hpp"

#include <algorithm>
#include <cmath>

#include "regions/base/error.hpp"
#include "selector/schedule/activations.hpp"

namespace shardfit::timing {
namespace {

// Spread of log(step) with rates measured for just these ranks and threads, for others, and for another type (bf16 can
// be twice as fast as fp32 or slower). Judgement: whole steps lay within 3-6 % of the rates measured with them.
constexpr double kExactSigma = 0.08, kNearSigma = 0.20, kOtherTypeSigma = 0.5, kNetworkSigma = 0.25;
constexpr double kMostDisturbed = 0.95;
// Ranks on several hosts whose network nobody stated: 10 Gb/s.
constexpr double kNodeBytesPerSecond = 1.25e9;

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

struct Pair {
  double forward = 0, backward = 0;
};

// Work grows with pairs x heads x dimension; the rate is interpolated in the logarithm of the sequence length between
// the two nearest samples of the nearest head dimension.
Pair attention_seconds(const BusyRates& rates, const AttentionCore& core, double sequence) {
  double nearest_dim = 0;
  for (const AttentionSample& s : rates.attention)
    if (nearest_dim == 0 ||
        std::abs(std::log(s.head_dim / core.query_dim)) < std::abs(std::log(nearest_dim / core.query_dim)))
      nearest_dim = s.head_dim;
  const AttentionSample *below = nullptr, *above = nullptr;
  for (const AttentionSample& s : rates.attention) {
    if (s.head_dim != nearest_dim) continue;
    if (s.sequence <= sequence && (!below || s.sequence > below->sequence)) below = &s;
    if (s.sequence >= sequence && (!above || s.sequence < above->sequence)) above = &s;
  }
  if (!below) below = above;
  if (!above) above = below;
  if (!below) return {};
  const auto per_unit = [](const AttentionSample& s) {
    const double units = s.sequence * s.sequence * s.heads * s.head_dim;
    return Pair{s.forward / units, s.backward / units};
  };
  const double t =
      above == below ? 0 : std::log(sequence / below->sequence) / std::log(above->sequence / below->sequence);
  const Pair low = per_unit(*below), high = per_unit(*above);
  const double window = core.window > 0 ? std::min(core.window, sequence) : sequence;
  // A window of w leaves s w - w^2 / 2 of the s^2 / 2 causal pairs.
  const double share = core.causal ? (2 * sequence * window - window * window) / (sequence * sequence) : 2;
  const double units = sequence * sequence * share * core.heads * core.query_dim;
  return {units * (low.forward + t * (high.forward - low.forward)),
          units * (low.backward + t * (high.backward - low.backward))};
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

CpuParts cpu_parts(const Work& work, const job::Plan& plan, const BusyRates& rates,
                   const pricing::Interconnect* interconnect) {
  // ---- one micro-step on one rank, event by event as selector/schedule lists it
  const double sequences = static_cast<double>(plan.micro_batch), tokens = sequences * work.sequence;
  const double micro_steps = static_cast<double>(plan.gradient_accumulation);
  const bool checkpointed = plan.checkpointing.kind == "full";
  double compute = 0, last_forward = 0;
  for (const BlockWork& block : work.blocks) {
    double forward = 0, backward = 0;
    for (const Linear& l : block.linears) {
      forward += gemm_seconds(rates, Product::kForward, tokens, l.in, l.out);
      backward += gemm_seconds(rates, Product::kInput, tokens, l.in, l.out) +
                  l.weight_gradient * gemm_seconds(rates, Product::kWeight, tokens, l.in, l.out);
    }
    for (const AttentionCore& core : block.attention) {
      const Pair a = attention_seconds(rates, core, work.sequence);
      forward += sequences * a.forward;
      backward += sequences * a.backward;
    }
    const auto add = [&](double width, const KernelRate& rate, bool computed_again) {
      forward += tokens * width * rate.forward;
      // Norms and activations are not kept but computed again on the way back.
      backward += tokens * width * (rate.backward + (computed_again ? rate.forward : 0));
    };
    add(block.rms_width, rates.rms_norm, true);
    add(block.layer_norm_width, rates.layer_norm, true);
    add(block.rope_width, rates.rope, false);
    add(block.gated_width + block.clamped_gated_width, rates.gated, true);
    add(block.activation_width + block.python_gelu_width, rates.activation, true);
    add(block.residual_width, rates.residual, false);
    compute += block.count * (forward + backward);
    if (checkpointed)
      compute += block.count / static_cast<double>(std::max<std::int64_t>(plan.checkpointing.every, 1)) * forward;
    last_forward = forward;
  }
  // The last block's forward has just run when its backward begins.
  if (checkpointed) compute -= last_forward;
  if (work.logits_width > 0) {
    double rows = static_cast<double>(schedule::kLossTileElements) / work.logits_width;
    if (work.loss_rows > 0) rows = work.loss_rows;
    else if (work.loss_chunks > 0) rows = std::ceil(tokens / work.loss_chunks);
    rows = std::clamp(rows, 1.0, tokens);
    for (Product product : {Product::kForward, Product::kInput, Product::kWeight})
      compute += tokens / rows * gemm_seconds(rates, product, rows, work.hidden, work.logits_width);
    compute += tokens * work.logits_width * (rates.cross_entropy.forward + rates.cross_entropy.backward);
    compute += tokens * work.head_norm_width * (rates.rms_norm.forward + rates.rms_norm.backward);
  }
  compute += tokens * work.hidden * (rates.embedding.forward + rates.embedding.backward);

  // ---- between ranks: nothing overlaps, a rank computes or communicates
  const CpuTraffic traffic = cpu_traffic(work, plan);
  double communication = 0, sharing = 0;
  const double network =
      plan.nodes > 1 ? (interconnect && interconnect->node_gbs ? *interconnect->node_gbs * 1e9 : kNodeBytesPerSecond)
                     : 0;
  const auto price = [&](const std::vector<TransferSample>& samples, double bytes, double passes) {
    const double inside = transfer_seconds(samples, bytes);
    return network > 0 ? std::max(inside, passes * bytes * static_cast<double>(plan.nodes - 1) /
                                              static_cast<double>(plan.nodes) / network)
                       : inside;
  };
  communication += micro_steps * (traffic.root_gathers * price(rates.all_gather, traffic.root_gather_bytes, 1) +
                                  traffic.block_gathers * price(rates.all_gather, traffic.block_gather_bytes, 1) +
                                  traffic.root_reduces * price(rates.reduce_scatter, traffic.root_reduce_bytes, 1) +
                                  traffic.block_reduces * price(rates.reduce_scatter, traffic.block_reduce_bytes, 1));
  communication += traffic.all_reduces_root * price(rates.all_reduce, traffic.root_reduce_bytes, 2) +
                   traffic.all_reduces_block * price(rates.all_reduce, traffic.block_reduce_bytes, 2);

  // ---- the update of what the rank holds
  const double ranks = static_cast<double>(plan.data_parallel());
  const double held = plan.sharding.stage == 3 ? work.trainable / ranks : work.trainable;
  if (plan.sharding.stage == 3 && ranks > 1)
    sharing = micro_steps * held * rates.clear;  // reduced shards are added to the gradients
  const double update = held * (rates.norm + rates.adamw);

  return {micro_steps * compute, communication, sharing + update};
}

StepTime cpu_step(const Work& work, const job::Plan& plan, const Calibration& calibration,
                  const pricing::Interconnect* interconnect) {
  const std::string type = work.compute == Compute::kFp32 ? "fp32" : "bf16";
  bool exact = false;
  const BusyRates* rates =
      calibration.find(static_cast<int>(std::clamp<std::int64_t>(plan.gpus_per_node, 1, 1 << 20)),
                       static_cast<int>(std::clamp(plan.cpus_per_gpu.value_or(0), 0.0, 1e6)), type, exact);
  if (!rates)
    throw Error("not_calibrated", "/plan/gpu", "the device \"cpu\" has no measured rates on this machine",
                "run shardfit calibrate --quick");
  const CpuParts parts = cpu_parts(work, plan, *rates, interconnect);
  // The rates are processor time. What other programs took while they were measured, they are taken to take again; the
  // range reaches down to an idle machine.
  const double load = 1 / (1 - std::min(rates->disturbed, kMostDisturbed));
  StepTime time;
  time.compute = load * (rates->compute_factor * parts.compute + rates->update_factor * parts.update);
  time.communication_exposed = load * rates->communication_factor * parts.communication;
  time.sigma = std::hypot(rates->type != type ? kOtherTypeSigma
                          : exact             ? kExactSigma
                                              : kNearSigma,
                          0.5 * std::log(load));
  if (plan.nodes > 1) time.sigma = std::hypot(time.sigma, kNetworkSigma);
  return time;
}

CpuTraffic cpu_traffic(const Work& work, const job::Plan& plan) {
  CpuTraffic traffic;
  const double ranks = static_cast<double>(plan.data_parallel());
  if (ranks <= 1) return traffic;
  const double blocks = work.layers, block = blocks > 0 ? work.block_parameters / blocks : 0,
               root = work.parameters - work.block_parameters;
  const double compute_bytes = work.compute == Compute::kFp32 ? 4 : 2;
  traffic.block_reduce_bytes = block * work.gradient_bytes;
  traffic.root_reduce_bytes = root * work.gradient_bytes;
  if (plan.sharding.stage != 3) {
    traffic.all_reduces_block = blocks;
    traffic.all_reduces_root = 1;
    return traffic;
  }
  using Reshard = job::Sharding::Reshard;
  traffic.block_gather_bytes = block * compute_bytes;
  traffic.root_gather_bytes = root * compute_bytes;
  traffic.root_gathers = 1;
  const Reshard reshard = plan.sharding.reshard_after_forward;
  traffic.block_gathers = reshard == Reshard::kFalse ? blocks : reshard == Reshard::kTrue ? 2 * blocks - 1 : 2 * blocks;
  traffic.block_reduces = blocks;
  traffic.root_reduces = 1;
  return traffic;
}

}  // namespace shardfit::timing
