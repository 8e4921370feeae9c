// The device "cpu": predicted from measured rates, over the very events that the runtime executes.
#include <gmock/gmock.h>

#include "../calibrate/fake_rates.hpp"
#include "rows.hpp"
#include "selector/schedule/step.hpp"
#include "selector/time/cpu_step.hpp"

namespace shardfit::timing {
namespace {

using calibrate::fake_rates;

struct Case {
  model::Model model;
  job::Job job;
  job::Plan plan;
};

// A Llama of SmolLM2's shape.
Case smol(int ranks, int stage, const std::string& precision = "fp32") {
  Case c;
  c.model = model::parse_model(
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
      "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": true})",
      "config.json");
  const Json job = {
      {"model", "smol"}, {"sequence_length", 256}, {"precision", precision}, {"framework", {{"name", "shardfit"}}}};
  Json plan = {
      {"gpu", "cpu"}, {"gpus_per_node", ranks}, {"cpus_per_gpu", 1}, {"micro_batch", 2}, {"gradient_accumulation", 2}};
  plan["sharding"] = {
      {"stage", stage}, {"shard_degree", stage == 3 ? ranks : 1}, {"replicate_degree", stage == 3 ? 1 : ranks}};
  c.job = job::parse_job(job, "");
  c.plan = job::parse_plan(plan);
  return c;
}

Calibration fake(int ranks = 2) { return {.cpu = "Test CPU", .cores = 2, .rates = {fake_rates(ranks)}}; }

// What is priced is what runs: collectives and bytes by build_step, to the padding of a unit.
TEST(CpuStep, TrafficIsTheSchedulesOwn) {
  for (const char* precision : {"fp32", "bf16-mixed"})
    for (const char* reshard : {"true", "\"always\"", "false"})
      for (int stage : {0, 3}) {
        Case c = smol(2, stage, precision);
        Json plan = Json::parse(job::to_json(c.plan).dump());
        plan["sharding"]["reshard_after_forward"] = Json::parse(reshard);
        c.plan = job::parse_plan(plan);
        const schedule::Step step = schedule::build_step(c.model, c.job, c.plan);
        double gathers = 0, gather_bytes = 0, reduces = 0, reduce_bytes = 0, last_reduces = 0, last_bytes = 0;
        for (const auto& event : step.micro) {
          const auto bytes = static_cast<double>(event.bytes);
          if (event.kind == schedule::EventKind::kGather) ++gathers, gather_bytes += bytes;
          if (event.kind != schedule::EventKind::kReduce) continue;
          if (event.last_micro_step_only) ++last_reduces, last_bytes += bytes;
          else ++reduces, reduce_bytes += bytes;
        }
        const CpuTraffic t = cpu_traffic(*prepare(c.job, c.model), c.plan);
        const std::string what = std::string(precision) + " " + reshard + " stage " + std::to_string(stage);
        EXPECT_EQ(t.block_gathers + t.root_gathers, gathers) << what;
        EXPECT_EQ(t.block_reduces + t.root_reduces, reduces) << what;
        EXPECT_EQ(t.all_reduces_block + t.all_reduces_root, last_reduces) << what;
        const double padding = 31 * 64 * 4;  // each unit is padded to 16 x ranks elements
        EXPECT_NEAR(t.block_gathers * t.block_gather_bytes + t.root_gathers * t.root_gather_bytes, gather_bytes,
                    2 * padding)
            << what;
        EXPECT_NEAR(t.block_reduces * t.block_reduce_bytes + t.root_reduces * t.root_reduce_bytes, reduce_bytes,
                    padding)
            << what;
        EXPECT_NEAR(t.all_reduces_block * t.block_reduce_bytes + t.all_reduces_root * t.root_reduce_bytes, last_bytes,
                    padding)
            << what;
      }
}

TEST(CpuStep, ProductsAreInterpolated) {
  BusyRates rates = fake_rates();
  EXPECT_NEAR(gemm_seconds(rates, Product::kForward, 512, 1024, 256), 2.0 * 512 * 1024 * 256 / 100e9, 1e-9);
  EXPECT_NEAR(gemm_seconds(rates, Product::kWeight, 300, 700, 5000), 2.0 * 300 * 700 * 5000 / 50e9, 1e-6);
  rates.gemms = {{512, 256, 256, 1, 1, 1}, {512, 4096, 4096, 16, 16, 16}};  // 67 MFLOP/s and 1.07 GFLOP/s
  const double between = gemm_seconds(rates, Product::kInput, 512, 1024, 1024);
  EXPECT_GT(2.0 * 512 * 1024 * 1024 / between, 0.067e9);
  EXPECT_LT(2.0 * 512 * 1024 * 1024 / between, 1.07e9);
}

TEST(CpuStep, ByHand) {
  const Case c = smol(2, 3);
  const Calibration calibration = fake();
  const CpuParts parts = cpu_parts(*prepare(c.job, c.model), c.plan, calibration.rates[0]);
  // Two micro-steps of 512 tokens. Products of a token: 30 blocks of 3.54 M, the head 28.3 M; 1/100 + 1/80 + 1/50 s a
  // GFLOP.
  const double block = 576.0 * 576 * 2 + 2 * 576.0 * 192 + 3 * 576.0 * 1536, head = 576.0 * 49152;
  const double products = 2 * 2 * 512 * (30 * block + head) * (1 / 100e9 + 1 / 80e9 + 1 / 50e9);
  EXPECT_GT(parts.compute, products);
  EXPECT_LT(parts.compute, 1.15 * products);  // attention and element-wise kernels
  // 59 block gathers and the root's at 10 GB/s, 30 reductions and the root's at 5 GB/s.
  const double block_bytes = 4 * (block + 2 * 576), root_bytes = 4 * (head + 576);
  EXPECT_NEAR(parts.communication, 2 * ((59 * block_bytes + root_bytes) / 10e9 + (30 * block_bytes + root_bytes) / 5e9),
              1e-6);
  EXPECT_NEAR(parts.update, 134515008 / 2.0 * (5e-10 + 1e-10 + 2 * 2e-10), 1e-3);
}

TEST(CpuStep, FactorsAndRange) {
  const Case c = smol(2, 3);
  Calibration calibration = fake();
  const auto& device = hardware::find_device("cpu", "");
  const auto work = prepare(c.job, c.model);
  const StepTime plain = step_time(*work, c.plan, device, nullptr, nullptr, &calibration);
  EXPECT_NEAR(plain.compute + plain.communication_exposed, plain.step, 1e-12);
  calibration.rates[0].communication_factor = 2;
  EXPECT_NEAR(step_time(*work, c.plan, device, nullptr, nullptr, &calibration).communication_exposed,
              2 * plain.communication_exposed, 1e-9);
  calibration = fake(1);  // another number of ranks than the plan's: a wider range
  calibration.rates[0].all_gather = calibration.rates[0].reduce_scatter = {{1e6, 1e-4}, {1e8, 1e-2}};
  EXPECT_GT(step_time(*work, c.plan, device, nullptr, nullptr, &calibration).sigma, plain.sigma);
}

TEST(CpuStep, OtherProgramsAreReckonedWith) {
  const Case c = smol(2, 3);
  Calibration calibration = fake();
  const auto& device = hardware::find_device("cpu", "");
  const auto work = prepare(c.job, c.model);
  const StepTime idle = step_time(*work, c.plan, device, nullptr, nullptr, &calibration);
  calibration.rates[0].disturbed = 0.5;
  const StepTime busy = step_time(*work, c.plan, device, nullptr, nullptr, &calibration);
  EXPECT_NEAR(busy.step, 2 * idle.step, 1e-9);
  EXPECT_LT(busy.low, 1.2 * idle.step);
  calibration.rates[0].disturbed = 1;
  EXPECT_TRUE(std::isfinite(step_time(*work, c.plan, device, nullptr, nullptr, &calibration).step));
}

TEST(CpuStep, CheckpointingRepeatsAllForwardsButTheLast) {
  Case c = smol(1, 0);
  c.plan.gradient_accumulation = 1;
  const Calibration calibration = fake(1);
  const auto work = prepare(c.job, c.model);
  const double none = cpu_parts(*work, c.plan, calibration.rates[0]).compute;
  c.plan.checkpointing.kind = "full";
  const double full = cpu_parts(*work, c.plan, calibration.rates[0]).compute;
  const double forward = (full - none) / 29;
  const double products = 2 * 512 * (576.0 * 576 * 2 + 2 * 576.0 * 192 + 3 * 576.0 * 1536) / 100e9;
  EXPECT_GT(forward, products);
  EXPECT_LT(forward, 1.25 * products);
}

TEST(CpuStep, WithoutACalibrationItSaysHowToGetOne) {
  const Case c = smol(2, 3);
  try {
    estimate_time({.job = c.job, .plan = c.plan, .model = c.model, .device = hardware::find_device("cpu", "")});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, "not_calibrated");
    EXPECT_THAT(error.what(), testing::HasSubstr("shardfit calibrate --quick"));
  }
  const Calibration calibration = fake();
  const Result result = estimate_time({.job = c.job,
                                       .plan = c.plan,
                                       .model = c.model,
                                       .device = hardware::find_device("cpu", ""),
                                       .calibration = &calibration});
  EXPECT_EQ(result.basis, "probed");
  EXPECT_THAT(result.assumed,
              testing::Contains(testing::HasSubstr("rates measured on Test CPU with 2 ranks of 1 threads")));
}

}  // namespace
}  // namespace shardfit::timing
