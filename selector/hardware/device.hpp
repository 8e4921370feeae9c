// The table of devices (selector/hardware/data/hardware.json): memory, rates and links, each with its source.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::hardware {

struct Device {
  std::string key, name;  // "h100_sxm_80gb"
  std::vector<std::string> aliases, slurm_types;
  std::optional<double> memory_mib;  // as nvidia-smi shows it
  std::optional<double> memory_bandwidth_gbs, bf16_tflops_dense, fp16_tflops_dense, fp8_tflops_dense, tf32_tflops,
      fp32_tflops, achievable_bf16_tflops;
  int pcie_gen = 0, pcie_lanes = 0;
  std::optional<double> pcie_gbs_measured, nvlink_gbs_one_way, tdp_w;
  std::optional<double> c2c_gbs_one_way;  // coherent link to the host (GH200, GB200), one direction
  std::string compute_capability;         // "9.0"; "" for AMD and CPU
  std::string source;
  bool is_cpu = false;  // the device "cpu": memory comes from the offer or plan, rates from calibration

  double memory_bytes() const { return memory_mib.value_or(0) * 1048576.0; }
  double compute_capability_number() const;  // 9.0; 0 when unknown
};

const std::vector<Device>& devices();
// By key, alias, or unambiguous Slurm type. Throws Error{unknown_gpu} (names the nearest) or Error{ambiguous_gpu}
// (lists candidates).
const Device& find_device(std::string_view name, const std::string& where);
const Device* try_find_device(std::string_view name);  // nullptr where find_device would throw

}  // namespace shardfit::hardware
