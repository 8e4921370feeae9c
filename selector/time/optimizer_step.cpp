#include "selector/time/optimizer_step.hpp"

#include <algorithm>
#include <cmath>

namespace shardfit::timing {
namespace {

// GPU bytes per local parameter (fitted on tests/truth/time_visible.jsonl): the arithmetic minimum of fp32 AdamW is 28
// (16 read, 12 written); foreach reads its intermediates again, the for-loop form once more.
constexpr double kFusedBytes = 32.2, kForeachBytes = 55.4, kSingleBytes = 120, kClippingBytes = 8;
constexpr double kBf16States = 0.55, kInt8States = 0.5;

// Host: GB/s that DeepSpeed's CPUAdam streams with n ranks = kRankRate x n^kRankPower, x kNewSoftware since 0.15 (2025
// hosts): 1.4 Gparam/s at 1 rank, 1.5 at 2, 2.0 at 8, 4.0 at 8 since 2025. Only desktops are bounded by their memory
// instead.
constexpr double kRankRate = 44.2, kRankPower = 0.167, kNewSoftware = 2.06, kUnbound = 0.84, kMemoryShare = 0.444;
constexpr double kTorchRate = 129.5;   // torch's fused CPU AdamW under FSDP
constexpr double kUnknownRate = 16.1;  // LoHan's host; torchao's CPUOffloadOptimizer twice that

constexpr double kDriveShare = 0.85;  // of the drives' specification (DeepNVMe reports 0.77-0.9)
constexpr double kArrayGbs = 14;      // from here up several drives read and write at once

double default_ddr_gbs(const hardware::Device& device, Generation generation) {
  const std::string_view key = device.key;
  const bool workstation = key.starts_with("rtx_a") || key.starts_with("rtx_6000") || key.starts_with("rtx_pro");
  if (key.starts_with("rtx_") && !workstation) return 60;  // desktops: two channels
  switch (generation) {
    case Generation::kVolta: return 256;
    case Generation::kAmpere: return 410;
    case Generation::kHopper: return 614;
    case Generation::kBlackwell:
    case Generation::kCdna: return 716;
    default: return 307;
  }
}

// What the host says of itself where it is a figure at all; 0 is unknown.
double stated_or(const std::optional<double>& value, double fallback) {
  return value && *value > 0 ? *value : fallback;
}

}  // namespace

double ddr_gbs_of(const pricing::Host* host, const hardware::Device& device, Generation generation) {
  return stated_or(host ? host->ddr_gbs : std::nullopt, default_ddr_gbs(device, generation));
}

Drives drives_of(const pricing::Host* host) {
  Drives drives;
  if (!host || !host->nvme) return drives;
  drives.read_gbs = stated_or(host->nvme->read_gbs, drives.read_gbs);
  drives.write_gbs = stated_or(host->nvme->write_gbs, 0.9 * drives.read_gbs);
  return drives;
}

void set_optimizer(const job::Job& job, Work& work) {
  std::string implementation = work.engine == Engine::kShardfit ? "fused" : "foreach";
  if (job.optimizer.implementation) {
    implementation = *job.optimizer.implementation;
  } else {
    // which one runs is settled, and told, where memory is counted; the rates were fitted on runs that did not say
    if (work.engine != Engine::kShardfit)
      work.assumed.push_back("optimizer step timed at the rate of " + implementation +
                             " (optimizer.implementation is not stated)");
  }
  double bytes = implementation == "fused"    ? kFusedBytes
                 : implementation == "single" ? kSingleBytes
                 : implementation == "cpu"    ? 30
                                              : kForeachBytes;
  const job::DType states = job.optimizer.states.value_or(job::DType::kFp32);
  if (states == job::DType::kBf16) bytes *= kBf16States;
  if (states == job::DType::kInt8 || states == job::DType::kInt4) bytes *= kInt8States;
  // Streams of fp32: AdamW parameter, gradient, two moments (28 B); Lion and SGD with momentum one moment (20 B); plain
  // SGD 12 B.
  const std::string& name = job.optimizer.name;
  if (name == "lion") bytes *= 20.0 / 28;
  if (name == "sgd") bytes *= 12.0 / 28;
  if (name == "adafactor") bytes *= 24.0 / 28;
  work.optimizer_bytes = bytes;
  work.optimizer_swapped = job.optimizer.implementation && implementation == "fused";
  if (name == "muon" || name == "galore_adamw")
    for (const BlockWork& block : work.blocks)
      for (const Linear& linear : block.linears) {
        // Muon: five Newton-Schulz rounds of two m x m x n products and one m x m x m; GaLore projects twice at a
        // quarter of the rank.
        const double m = std::min(linear.in, linear.out), n = std::max(linear.in, linear.out);
        work.optimizer_flops +=
            block.count * linear.weight_gradient * (name == "muon" ? 5 * (4 * m * m * n + 2 * m * m * m) : m * m * n);
      }
  // On the host: parameters, gradients and two moments read, three written, and 4 B for the copy that goes back.
  // DeepSpeed keeps fp32 states whatever the job says.
  work.cpu_state_bytes = 32;
  if (work.engine != Engine::kDeepspeed) {
    if (states == job::DType::kBf16) work.cpu_state_bytes = 18;
    if (states == job::DType::kInt8 || states == job::DType::kInt4) work.cpu_state_bytes = 14;
  }
}

double gpu_optimizer_seconds(const Work& work, double local, const DeviceRates& rates) {
  double seconds = local * (work.optimizer_bytes + kClippingBytes) / rates.memory_bytes_per_second;
  if (work.optimizer_flops > 0 && work.trainable > 0)
    seconds += work.optimizer_flops * (local / work.trainable) / rates.half_flops;
  return seconds;
}

double cpu_optimizer_seconds(const Work& work, double node_parameters, double ranks, bool cores_bound, double ddr_gbs,
                             const pricing::Host* host) {
  if (host && host->optimizer_gparams_per_s && *host->optimizer_gparams_per_s > 0)
    return node_parameters / (*host->optimizer_gparams_per_s * 1e9);
  double rate = 0;
  switch (work.engine) {
    case Engine::kDeepspeed:
      rate = kRankRate * std::pow(std::max(ranks, 1.0), kRankPower) * (work.version >= 15 ? kNewSoftware : 1);
      // Two to four ranks that are not bound to cores share them badly: 3084 ms against 2383 (DeepSpeed PR 7474).
      if (!cores_bound && ranks > 1 && ranks <= 4) rate *= kUnbound;
      break;
    case Engine::kFsdp1:
    case Engine::kFsdp2:
    case Engine::kDdp:
    case Engine::kMegatron: rate = kTorchRate; break;
    case Engine::kShardfit: rate = kRankRate * std::pow(std::max(ranks, 1.0), kRankPower) * kNewSoftware; break;
    case Engine::kOther: rate = kUnknownRate * (work.label == "torchao" ? 2 : 1); break;
  }
  rate = std::min(rate, kMemoryShare * ddr_gbs);
  return node_parameters * work.cpu_state_bytes / (std::max(rate, 1e-3) * 1e9);
}

double nvme_optimizer_seconds(double node_parameters, double read_gbs, double write_gbs) {
  const double read = 16 / (read_gbs * kDriveShare * 1e9), write = 14 / (write_gbs * kDriveShare * 1e9);
  return node_parameters * (read_gbs > kArrayGbs ? std::max(read, write) : read + write);
}

}  // namespace shardfit::timing
