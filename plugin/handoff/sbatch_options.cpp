#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plugin/handoff/handoff.hpp"
#include "regions/base/text.hpp"

namespace shardfit::handoff {

std::string slurm_time(double seconds) {
  const auto minutes = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(std::min(seconds, 3.15e9) / 60)));
  const auto days = minutes / 1440, hours = minutes % 1440 / 60;
  return days > 0 ? fmt::format("{}-{:02d}:{:02d}:00", days, hours, minutes % 60)
                  : fmt::format("{:02d}:{:02d}:00", hours, minutes % 60);
}

SbatchOptions sbatch_options(const job::Plan& plan, const Request& request) {
  SbatchOptions o;
  o.set.emplace_back("partition", request.partition);
  o.set.emplace_back("nodes", std::to_string(plan.nodes));
  o.set.emplace_back("ntasks-per-node", std::to_string(plan.gpus_per_node));
  if (plan.gpu != "cpu") {
    o.set.emplace_back("gpus-per-node", request.slurm_gpu_type.empty()
                                            ? std::to_string(plan.gpus_per_node)
                                            : fmt::format("{}:{}", request.slurm_gpu_type, plan.gpus_per_node));
  }
  // A job takes the share of the node's CPUs and memory that its GPUs are of the node's GPUs.
  const double share =
      request.node_gpus > 0
          ? std::min(1.0, static_cast<double>(plan.gpus_per_node) / static_cast<double>(request.node_gpus))
          : 1.0;
  double cpus = plan.cpus_per_gpu.value_or(
      request.node_cpus > 0 ? request.node_cpus * share / static_cast<double>(plan.gpus_per_node) : 1);
  if (request.node_cpus > 0) cpus = std::min(cpus, request.node_cpus / static_cast<double>(plan.gpus_per_node));
  o.set.emplace_back("cpus-per-task",
                     std::to_string(std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(cpus)))));
  if (request.node_ram_gib > 0) {
    // Host memory of the prediction with a quarter in hand, at least the share, at most the node.
    const double predicted_mib = static_cast<double>(request.host_bytes) / 1048576 * 1.25,
                 node_mib = request.node_ram_gib * 1024;
    const double mib = std::min(node_mib, std::max(predicted_mib, node_mib * share));
    o.set.emplace_back("mem",
                       fmt::format("{}M", std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(mib)))));
  }
  if (!request.features.empty()) o.set.emplace_back("constraint", join(request.features, "&"));
  if (request.run_seconds_high > 0) {
    const double seconds =
        request.max_seconds ? std::min(request.run_seconds_high, *request.max_seconds) : request.run_seconds_high;
    o.defaults.emplace_back("time", slurm_time(seconds));
  }
  return o;
}

}  // namespace shardfit::handoff
