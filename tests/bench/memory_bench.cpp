// CPU time of one memory estimate of a 70B model, by framework and checkpointing: memory_bench [ESTIMATES].
// Budget: 10,000 in 10 s on one core.
#include <fmt/format.h>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"
#include "selector/model/model.hpp"

int main(int argc, char** argv) {
  using nlohmann::json;
  using namespace shardfit;
  const int n = argc > 1 ? std::max(1, std::atoi(argv[1])) : 500;
  const std::string base = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";
  const std::string file = "configs/meta-llama__Meta-Llama-3-70B.json";
  const auto model = model::load_model(base + "/" + file);
  const auto& device = hardware::find_device("h100_sxm_80gb", "");
  double total = 0;
  for (const char* framework : {"fsdp2", "fsdp1", "deepspeed", "shardfit"})
    for (const char* checkpointing : {"none", "full"}) {
      const auto job = job::parse_job({{"model", file},
                                       {"method", "full"},
                                       {"sequence_length", 4096},
                                       {"precision", "bf16-mixed"},
                                       {"framework", {{"name", framework}}}},
                                      base);
      auto plan = job::parse_plan({{"gpu", "h100_sxm_80gb"},
                                   {"gpus_per_node", 8},
                                   {"nodes", 8},
                                   {"gradient_accumulation", 2},
                                   {"activation_checkpointing", checkpointing},
                                   {"sharding", {{"stage", 3}, {"shard_degree", 64}}}});
      const auto begin = std::clock();
      for (int i = 0; i < n; ++i) {
        plan.micro_batch = 1 + i % 4;
        if (memory::estimate_memory({job, plan, model, device}).memory.allocated_peak <= 0) return 1;
      }
      const double each = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / n;
      total += each;
      fmt::print("{:10} {:5} {:.3f} ms\n", framework, checkpointing, each * 1e3);
    }
  fmt::print("mean {:.3f} ms; 10,000 estimates {:.1f} s\n", total / 8 * 1e3, total / 8 * 1e4);
  return 0;
}
