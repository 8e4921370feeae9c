// What is predicted of one (job, plan): docs/formats.md, "Estimate". Filled by selector/memory and selector/time.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shardfit {

struct MemoryTerm {
  std::string name;  // "optimizer states", "logits", ...
  std::int64_t bytes = 0;
};

struct MemoryPeaks {
  std::int64_t allocated_peak = 0, reserved_peak = 0, device_peak = 0;  // bytes on the fullest GPU
};

struct MemoryEstimate : MemoryPeaks {
  std::int64_t allocated_peak_high = 0, device_peak_high = 0;  // 95 % bounds
  std::string phase;                                 // load | forward | loss | backward | clip | optimizer_step | save
  std::vector<MemoryTerm> terms;                     // alive at that peak, largest first, summing to device_peak
  std::vector<MemoryPeaks> by_stage;                 // pipeline stages, first to last
  std::int64_t host = 0, host_pinned = 0, nvme = 0;  // bytes a node
};

struct TimeEstimate {
  double step = 0, step_low = 0, step_high = 0;  // seconds an optimizer step
  double tokens_per_second_per_gpu = 0;
  std::string bound_by;  // compute | communication | pcie | cpu_optimizer | nvme | input
  std::map<std::string, double>
      parts;  // compute, communication_exposed, pcie_exposed, cpu_optimizer, nvme_exposed, input; seconds
};

struct Estimate {
  MemoryEstimate memory;
  std::int64_t parameters_total = 0, parameters_trainable = 0;
  std::optional<TimeEstimate> time;
  std::string fits = "unsure";       // yes | no | unsure
  std::string basis = "table";       // table | probed | learned
  std::vector<std::string> assumed;  // "optimizer.implementation=foreach (transformers default)"
};

nlohmann::ordered_json to_json(const Estimate& estimate);

}  // namespace shardfit
