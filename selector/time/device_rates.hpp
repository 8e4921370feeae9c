// What a device sustains inside a training step, as opposed to its datasheet: matrix products under its power limit,
// memory, links.
#pragma once
#include "selector/hardware/device.hpp"

namespace shardfit::timing {

enum class Generation { kVolta, kAmpere, kHopper, kBlackwell, kGa10x, kAda, kCdna };

struct DeviceRates {
  Generation generation = Generation::kHopper;
  double half_flops = 0, fp8_flops = 0, fp32_flops = 0;  // FLOP/s of large matrix products inside training
  double peak_half_flops = 0;                            // datasheet, dense
  double memory_bytes_per_second = 0;                    // what element-wise kernels reach
  double datasheet_memory = 0;
  bool nvlink_all = false;  // every pair of the node's GPUs has NVLink
  bool c2c = false;         // coherent link to the host (Grace)
  bool guessed = false;     // no row: scaled from the datasheet
};

// Device "cpu" has no rates here: they come from calibration.
DeviceRates device_rates(const hardware::Device& device);

}  // namespace shardfit::timing
