#include "selector/time/device_rates.hpp"

#include <string>
#include <string_view>

namespace shardfit::timing {
namespace {

struct Row {
  std::string_view prefix;  // of the device's key; the longest match counts
  Generation generation;
  double half_tflops, fp8_tflops;  // sustained inside training; 0 = the hardware has none
};

// Sustained = maximum achievable matmul FLOPS of stas00/ml-engineering (A100 271, H100 794, B200 1745, MI300X 668)
// lowered to what a power-limited training step keeps, then one factor a generation fitted on
// tests/truth/time_visible.jsonl (Volta 0.81: arXiv 2104.07857 reports 62-78 TFLOPS there; Ampere 0.98, Hopper 1.04,
// Blackwell 1.01, GA10x 1.09, Ada 1.14; fp8 Hopper 1.19, Blackwell 0.98). Cards of 72-350 W are scaled by their power
// limit: judgement, +-12 %.
constexpr double kVolta = 0.806, kAmpere = 0.984, kHopper = 1.041, kBlackwell = 1.009, kGa10x = 1.090, kAda = 1.145,
                 kHopper8 = 1.188, kBlackwell8 = 0.979;
constexpr Row kRows[] = {
    {"v100", Generation::kVolta, 88 * kVolta, 0},
    {"titan_rtx", Generation::kVolta, 70 * kVolta, 0},
    {"quadro_rtx_6000", Generation::kVolta, 70 * kVolta, 0},
    {"rtx_2080ti", Generation::kVolta, 50 * kVolta, 0},
    {"t4", Generation::kVolta, 24 * kVolta, 0},
    {"p100", Generation::kVolta, 14 * kVolta, 0},
    {"a100_sxm", Generation::kAmpere, 250 * kAmpere, 0},
    {"a800", Generation::kAmpere, 250 * kAmpere, 0},
    {"a100_pcie_80gb", Generation::kAmpere, 215 * kAmpere, 0},
    {"a100_pcie_40gb", Generation::kAmpere, 200 * kAmpere, 0},
    {"a30", Generation::kAmpere, 120 * kAmpere, 0},
    {"h100_sxm_80gb", Generation::kHopper, 640 * kHopper, 1150 * kHopper8},
    {"h100_sxm_96gb", Generation::kHopper, 520 * kHopper, 930 * kHopper8},
    {"h100_pcie", Generation::kHopper, 400 * kHopper, 700 * kHopper8},
    {"h100_nvl", Generation::kHopper, 460 * kHopper, 800 * kHopper8},
    {"h200_sxm", Generation::kHopper, 660 * kHopper, 1180 * kHopper8},
    {"h200_nvl", Generation::kHopper, 580 * kHopper, 1000 * kHopper8},
    {"gh200", Generation::kHopper, 640 * kHopper, 1150 * kHopper8},
    {"h800", Generation::kHopper, 640 * kHopper, 1150 * kHopper8},
    {"h20", Generation::kHopper, 125 * kHopper, 225 * kHopper8},  // 148 TFLOPS within 400 W: not power limited
    {"b200", Generation::kBlackwell, 1480 * kBlackwell, 2700 * kBlackwell8},
    {"b300", Generation::kBlackwell, 1560 * kBlackwell, 2850 * kBlackwell8},
    {"gb200", Generation::kBlackwell, 1650 * kBlackwell, 3000 * kBlackwell8},
    {"gb300", Generation::kBlackwell, 1800 * kBlackwell, 3300 * kBlackwell8},
    {"rtx_3090", Generation::kGa10x, 64 * kGa10x, 0},
    {"rtx_3080_ti", Generation::kGa10x, 60 * kGa10x, 0},
    {"a10_24gb", Generation::kGa10x, 70 * kGa10x, 0},
    {"a10g", Generation::kGa10x, 55 * kGa10x, 0},
    {"rtx_3080_10gb", Generation::kGa10x, 52 * kGa10x, 0},
    {"rtx_a6000", Generation::kGa10x, 105 * kGa10x, 0},
    {"a40", Generation::kGa10x, 100 * kGa10x, 0},
    {"rtx_a5000", Generation::kGa10x, 75 * kGa10x, 0},
    {"rtx_a4000", Generation::kGa10x, 45 * kGa10x, 0},
    {"rtx_4090", Generation::kAda, 150 * kAda, 280 * kAda},
    {"rtx_6000_ada", Generation::kAda, 190 * kAda, 330 * kAda},
    {"l40s", Generation::kAda, 200 * kAda, 350 * kAda},
    {"l40_", Generation::kAda, 140 * kAda, 250 * kAda},
    {"l4_", Generation::kAda, 52 * kAda, 95 * kAda},
    {"rtx_4070", Generation::kAda, 80 * kAda, 150 * kAda},
    {"l20_", Generation::kAda, 88 * kAda, 160 * kAda},
    {"rtx_5090", Generation::kAda, 205 * kAda, 390 * kAda},
    {"rtx_pro_6000", Generation::kAda, 330 * kAda, 620 * kAda},
    {"mi300x", Generation::kCdna, 560, 900},
    {"mi325x", Generation::kCdna, 640, 1000},
    {"mi355x", Generation::kCdna, 1300, 2300},
    {"mi250x", Generation::kCdna, 250, 0},
};

// Element-wise kernels reach this share of the datasheet's memory bandwidth (fitted on time_visible.jsonl).
constexpr double kMemoryShare = 0.9227;
// fp32 products by TF32 where the device has it (NGC containers and most trainers allow it), else by the fp32 units.
constexpr double kFp32Share = 0.6;
// Devices without a row: sustained share of the datasheet, the mean of the rows above.
constexpr double kGuessedShare = 0.62;

Generation generation_of(double capability) {
  if (capability >= 10 && capability < 12) return Generation::kBlackwell;
  if (capability >= 9 && capability < 10) return Generation::kHopper;
  if (capability >= 8.85 || capability >= 12) return Generation::kAda;
  if (capability >= 8.5) return Generation::kGa10x;
  if (capability >= 8) return Generation::kAmpere;
  if (capability > 0) return Generation::kVolta;
  return Generation::kCdna;
}

// Asked for every plan that is priced, mostly for the same device again.
const Row* row_of(std::string_view key) {
  thread_local std::string last_key;
  thread_local const Row* last = nullptr;
  if (key == last_key) return last;
  const Row* best = nullptr;
  for (const Row& row : kRows)
    if (key.starts_with(row.prefix) && (!best || row.prefix.size() > best->prefix.size())) best = &row;
  last_key = key;
  return last = best;
}

}  // namespace

DeviceRates device_rates(const hardware::Device& device) {
  DeviceRates rates;
  const std::string_view key = device.key;
  const Row* best = row_of(key);
  const double peak = device.bf16_tflops_dense.value_or(device.fp16_tflops_dense.value_or(0));
  rates.peak_half_flops = peak * 1e12;
  if (best) {
    rates.generation = best->generation;
    rates.half_flops = best->half_tflops * 1e12;
    rates.fp8_flops = best->fp8_tflops * 1e12;
  } else {
    rates.guessed = true;
    rates.generation = generation_of(device.compute_capability_number());
    rates.half_flops =
        (device.achievable_bf16_tflops ? 0.83 * *device.achievable_bf16_tflops : kGuessedShare * peak) * 1e12;
    rates.fp8_flops = kGuessedShare * device.fp8_tflops_dense.value_or(0) * 1e12;
  }
  rates.fp32_flops = device.tf32_tflops.value_or(device.fp32_tflops.value_or(peak / 8)) * kFp32Share * 1e12;
  if (rates.half_flops <= 0) rates.half_flops = rates.fp32_flops;
  if (rates.fp8_flops <= 0) rates.fp8_flops = rates.half_flops;
  if (rates.peak_half_flops <= 0) rates.peak_half_flops = rates.half_flops;
  rates.datasheet_memory = device.memory_bandwidth_gbs.value_or(300) * 1e9;
  rates.memory_bytes_per_second = rates.datasheet_memory * kMemoryShare;
  // Bridges join pairs of PCIe cards only, and workstation cards rarely have one: there the link counts as PCIe unless
  // the interconnect states it.
  const bool bridged = key.starts_with("rtx") || key.starts_with("a10_") || key.starts_with("a40") ||
                       key.find("pcie") != key.npos || key.find("nvl_") != key.npos || key.starts_with("titan") ||
                       key.starts_with("quadro") || key.starts_with("a30");
  rates.nvlink_all = device.nvlink_gbs_one_way.value_or(0) > 0 && !bridged;
  rates.c2c = device.c2c_gbs_one_way.value_or(0) > 0;
  return rates;
}

}  // namespace shardfit::timing
