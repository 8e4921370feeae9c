#include "selector/decide/words.hpp"

#include <fmt/format.h>

#include <cmath>

#include "regions/base/text.hpp"
#include "selector/decide/table.hpp"

namespace shardfit::decide {

std::string money_words(double amount, const std::string& currency) {
  const double a = std::fabs(amount);
  if (a >= 10000) {
    std::string digits = fmt::format("{:.0f}", amount);
    for (int i = static_cast<int>(digits.size()) - 3; i > (amount < 0 ? 1 : 0); i -= 3)
      digits.insert(static_cast<size_t>(i), ",");
    return digits + " " + currency;
  }
  if (a >= 1 || a == 0) return fmt::format("{:.2f} {}", amount, currency);
  return fmt::format("{:.2g} {}", amount, currency);
}

std::string percent_words(double ratio) {
  const double p = 100 * ratio;
  return std::fabs(p) >= 9.5    ? fmt::format("{:.0f} %", p)
         : std::fabs(p) >= 0.95 ? fmt::format("{:.1f} %", p)
                                : fmt::format("{:.2g} %", p);
}

std::string plan_words(const job::Plan& p) {
  std::string s = fmt::format("{} x {} {}", p.nodes, p.gpus_per_node, p.gpu);
  const auto& sh = p.sharding;
  if (p.gpus() > 1) {
    if (sh.stage == 0) s += sh.replicate_degree > 1 ? ", replicated" : "";
    else s += fmt::format(", stage {} over {}", sh.stage, sh.shard_degree);
    if (sh.stage > 0 && sh.replicate_degree > 1) s += fmt::format(" x {} replicas", sh.replicate_degree);
    if (sh.stage == 3 && sh.reshard_after_forward == job::Sharding::Reshard::kFalse) s += " kept gathered";
  }
  if (p.tensor_parallel > 1) s += fmt::format(", tensor {}", p.tensor_parallel);
  if (p.pipeline.degree > 1) s += fmt::format(", pipeline {}", p.pipeline.degree);
  if (p.context_parallel > 1) s += fmt::format(", context {}", p.context_parallel);
  if (p.expert_parallel > 1) s += fmt::format(", experts {}", p.expert_parallel);
  s += fmt::format(", micro batch {} x {}", p.micro_batch, p.gradient_accumulation);
  if (p.checkpointing.stated && p.checkpointing.kind != "none") {
    s += p.checkpointing.every > 1 ? fmt::format(", checkpointing every {} blocks", p.checkpointing.every)
                                   : ", " + p.checkpointing.kind + " checkpointing";
  }
  std::vector<std::string> cpu, nvme;
  const auto add = [&](job::Place place, const char* what) {
    if (place == job::Place::kCpu) cpu.emplace_back(what);
    if (place == job::Place::kNvme) nvme.emplace_back(what);
  };
  add(p.offload.parameters, "parameters");
  add(p.offload.gradients, "gradients");
  add(p.offload.optimizer, "optimizer");
  add(p.offload.activations, "activations");
  if (!cpu.empty()) s += ", " + join(cpu, "+") + " on CPU";
  if (!nvme.empty()) s += ", " + join(nvme, "+") + " on NVMe";
  return s;
}

}  // namespace shardfit::decide
