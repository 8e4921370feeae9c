// What a step time costs: preparing a job, then pricing plans of it. time_bench [PLANS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/time/time.hpp"

int main(int argc, char** argv) {
  using namespace shardfit;
  using Clock = std::chrono::steady_clock;
  const int plans = argc > 1 ? std::max(1, std::atoi(argv[1])) : 100000;
  const auto microseconds = [](Clock::time_point since) {
    return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
  };
  for (const char* config : {"meta-llama__Meta-Llama-3-8B", "meta-llama__Meta-Llama-3.1-405B",
                             "deepseek-ai__DeepSeek-V3", "Qwen__Qwen3-30B-A3B"}) {
    const std::string file = std::string("configs/") + config + ".json", folder = SHARDFIT_SOURCE_DIR "/tests/truth";
    model::Model model;
    try {
      model = model::load_model(folder + "/" + file);
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", config, error.what());
      continue;
    }
    const auto job = job::parse_job(
        nlohmann::json{{"model", file}, {"sequence_length", 4096}, {"framework", {{"name", "fsdp2"}}}}, folder);
    auto plan = job::parse_plan(nlohmann::json{{"gpu", "h100_sxm_80gb"},
                                               {"gpus_per_node", 8},
                                               {"nodes", 4},
                                               {"sharding", {{"stage", 3}, {"shard_degree", 32}}},
                                               {"micro_batch", 1},
                                               {"activation_checkpointing", "full"}});
    const auto& device = hardware::find_device(plan.gpu, "/plan/gpu");
    auto begin = Clock::now();
    std::shared_ptr<const timing::Work> work;
    for (int i = 0; i < 100; ++i) work = timing::prepare(job, model);
    const double prepare = microseconds(begin) / 100;
    begin = Clock::now();
    double sum = 0;
    for (int i = 0; i < plans; ++i) {
      plan.micro_batch = 1 + i % 8;
      sum += timing::step_time(*work, plan, device).step;
    }
    std::printf("%-34s prepare %6.1f us   step_time %5.2f us a plan   (mean step %.2f s)\n", config, prepare,
                microseconds(begin) / plans, sum / plans);
  }
  return 0;
}
