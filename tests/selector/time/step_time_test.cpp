// What must hold of any step: more work takes longer, faster parts help, offload costs what cost models of the field
// say.
#include <gmock/gmock.h>

#include "rows.hpp"
#include "selector/time/collectives.hpp"
#include "selector/time/optimizer_step.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {
namespace {

const std::string kTruth = SHARDFIT_SOURCE_DIR "/tests/truth";

struct Case {
  model::Model model;
  job::Job job;
  job::Plan plan;
  pricing::Host host;
  pricing::Interconnect interconnect;

  StepTime time() const {
    return step_time(*prepare(job, model), plan, hardware::find_device(plan.gpu, ""), &host, &interconnect);
  }
  double step() const { return time().step; }
};

// Llama 3 8B, full fine-tune, FSDP2 on one node of eight H100.
Case llama() {
  const std::string config = kTruth + "/configs/meta-llama__Meta-Llama-3-8B.json";
  Case c;
  c.model = model::load_model(config);
  c.job = job::parse_job(
      parse_json(
          R"({"model": "configs/meta-llama__Meta-Llama-3-8B.json", "sequence_length": 4096, "precision": "bf16-mixed",
      "attention": "flash2", "framework": {"name": "fsdp2"}, "fused_kernels": [], "optimizer": {"name": "adamw", "implementation": "fused"}})"),
      kTruth);
  c.plan = job::parse_plan(parse_json(
      R"({"gpu": "h100_sxm_80gb", "gpus_per_node": 8, "nodes": 1, "sharding": {"stage": 3, "shard_degree": 8},
      "micro_batch": 2, "gradient_accumulation": 4, "activation_checkpointing": "full"})"));
  return c;
}

// What a Site leaves out of an offer must change no step: the search shares times between offers of equal sites.
TEST(StepTimer, EqualSitesTakeEqualTime) {
  Case c = llama();
  const auto seconds = [&] {
    return StepTimer(*prepare(c.job, c.model), hardware::find_device(c.plan.gpu, ""), &c.host, &c.interconnect)(c.plan)
        .step;
  };
  for (const job::Place place : {job::Place::kNone, job::Place::kCpu, job::Place::kNvme}) {
    c = llama();
    c.job.framework.name = "deepspeed";
    c.plan.offload.optimizer = c.plan.offload.parameters = place;
    c.host.nvme = pricing::Nvme{};
    const double base = seconds();
    EXPECT_EQ(base, c.step());
    const Site site = site_of(&c.host, &c.interconnect);
    c.host.vcpus = 7;
    c.host.ram_gib = 11;
    c.host.cores_per_gpu = 3;
    c.host.nvme->drives = 9;
    c.host.nvme->capacity_gb = 5;
    EXPECT_EQ(site, site_of(&c.host, &c.interconnect));
    EXPECT_EQ(seconds(), base);
    // And each of its figures makes another site.
    for (auto* figure : {&c.host.pcie_gbs, &c.host.ddr_gbs, &c.host.optimizer_gparams_per_s, &c.host.nvme->read_gbs,
                         &c.host.nvme->write_gbs, &c.interconnect.gpu_link_gbs, &c.interconnect.node_gbs}) {
      const auto was = *figure;
      *figure = 3.25;
      EXPECT_NE(site, site_of(&c.host, &c.interconnect));
      *figure = was;
    }
    c.host.core_binding = true;
    EXPECT_NE(site, site_of(&c.host, &c.interconnect));
  }
}

TEST(StepTime, MoreWorkTakesLonger) {
  const Case base = llama();
  Case c = base;
  c.job.sequence_length *= 2;
  EXPECT_GT(c.step(), 2 * base.step() * 0.98);  // attention grows with the square
  c = base;
  c.plan.micro_batch *= 2;
  EXPECT_GT(c.step(), 1.7 * base.step());
  c = base;
  c.plan.gradient_accumulation *= 2;
  EXPECT_NEAR(c.step(), 2 * base.step(), 0.1 * base.step());
  c = base;
  c.job.attention = "flash1";
  EXPECT_GT(c.step(), base.step());
  c.job.attention = "eager";
  EXPECT_GT(c.step(), base.step());
}

TEST(StepTime, CheckpointingCostsAForward) {
  const Case full = llama();
  Case none = full, half = full;
  none.plan.checkpointing.kind = "none";
  half.plan.checkpointing.every = 2;
  EXPECT_LT(none.step(), half.step());
  EXPECT_LT(half.step(), full.step());
  EXPECT_NEAR(full.step() / none.step(), 1.31, 0.05);  // 4 passes' work instead of 3, the head and the optimizer apart
}

TEST(StepTime, FasterPartsNeverHurt) {
  const Case base = llama();
  double last = base.step();
  for (const char* gpu : {"h200_sxm_141gb", "b200_sxm_180gb"}) {
    Case c = base;
    c.plan.gpu = gpu;
    EXPECT_LT(c.step(), last) << gpu;
    last = c.step();
  }
  Case c = base;
  c.plan.nodes = 4;
  c.plan.sharding.shard_degree = 32;
  c.interconnect.node_gbs = 12.5;
  const double slow = c.step();
  c.interconnect.node_gbs = 400;
  EXPECT_LT(c.step(), slow);
  c.interconnect.node_gbs.reset();
  EXPECT_GT(c.time().sigma, base.time().sigma);  // an unknown network widens the range
}

TEST(StepTime, HybridShardingKeepsGathersInTheNode) {
  Case c = llama();
  c.plan.nodes = 4;
  c.interconnect.node_gbs = 12.5;
  c.plan.accumulate_without_sync = true;  // gradients cross the network once a step either way
  c.plan.sharding.shard_degree = 32;
  const double everywhere = c.time().communication_exposed;
  c.plan.sharding.shard_degree = 8;
  c.plan.sharding.replicate_degree = 4;
  EXPECT_LT(c.time().communication_exposed, 0.8 * everywhere);
}

TEST(StepTime, AdaptersTrainFasterThanTheWhole) {
  const Case base = llama();
  Case c = base;
  c.job.method.kind = job::MethodKind::kLora;
  c.job.method.rank = 16;
  c.job.method.targets = {"all-linear"};
  EXPECT_LT(c.step(), base.step());
  EXPECT_GT(c.step(), 0.6 * base.step());
  const double work = prepare(c.job, c.model)->trainable;
  EXPECT_DOUBLE_EQ(work, 41943040);  // r (in + out) of seven products in 32 blocks
}

TEST(StepTime, PartialTrainingStopsAtTheFirstTrainedBlock) {
  const Case base = llama();
  Case c = base;
  c.job.method.kind = job::MethodKind::kPartial;
  c.job.method.trainable = {"model.layers.31", "lm_head"};
  const auto work = prepare(c.job, c.model);
  EXPECT_NEAR(work->backward_share, 1.0 / 32, 1e-9);
  EXPECT_DOUBLE_EQ(work->trainable, 218112000.0 + 525336576.0);
  EXPECT_LT(c.step(), 0.55 * base.step());
}

// cost.md 2.2: ZeRO-3 moves 1.5 times what data parallelism does.
TEST(StepTime, GathersByTheSlowestLink) {
  Case c = llama();
  c.plan.nodes = 2;
  c.interconnect.node_gbs = 100;
  const auto& device = hardware::find_device(c.plan.gpu, "");
  const Links links = links_of(c.plan, device, device_rates(device), &c.host, &c.interconnect);
  const double bytes = 1e9;
  EXPECT_NEAR(gather_seconds(links, bytes, 8), bytes * 7 / 8 / links.gpu, 1e-4);
  EXPECT_NEAR(gather_seconds(links, bytes, 16), bytes / 2 / (0.6283 * 100e9), 1e-4);  // the network decides
  EXPECT_EQ(gather_seconds(links, bytes, 1), 0);
  EXPECT_EQ(alltoall_seconds(links, bytes, 1, 2), 0);
}

// Sigma of unknowns adds up; a stated kernel narrows.
TEST(StepTime, StatingTheKernelNarrowsTheRange) {
  Case c = llama();
  const double stated = c.time().sigma;
  c.job.attention = "flash";
  EXPECT_GT(c.time().sigma, stated);
}

// cost.md 2.4: the constant of CPU offload is P / (R nodes), whatever the GPU and the tokens.
TEST(Offload, SerialOptimizerIsAConstantPerStep) {
  Case c = llama();
  c.job.framework.name = "deepspeed";
  c.job.framework.version = "0.19.2";
  const auto constant = [](Case c) {
    const double without = c.time().compute;
    c.job.optimizer.implementation = "cpu";
    c.plan.offload.optimizer = job::Place::kCpu;
    c.plan.offload.gradients = job::Place::kCpu;
    const StepTime with = c.time();
    EXPECT_LT(with.compute, without);  // the GPU no longer updates
    return with.cpu_optimizer;
  };
  const double seconds = constant(c);
  EXPECT_NEAR(seconds, 8.03e9 / 4.0e9, 0.25);  // 4 Gparam/s in situ: DeepSpeed 0.19 on an H200 host
  Case longer = c;
  longer.plan.micro_batch = 8;
  EXPECT_DOUBLE_EQ(constant(longer), seconds);
  Case two = c;
  two.plan.nodes = 2;
  two.plan.sharding.shard_degree = 16;
  EXPECT_NEAR(constant(two), seconds / 2, 1e-9);
  Case told = c;
  told.host.optimizer_gparams_per_s = 2;
  EXPECT_NEAR(constant(told), 8.03e9 / 2e9, 0.02);
}

// cost.md 2.4: two of the six published H200 points give F and c; the others lie within 3.4 %.
TEST(Offload, SixPointsOnH200) {
  int points = 0;
  for (const Json& line : read_lines(kTruth + "/time_visible.jsonl")) {
    const std::string id = line.at("id").get<std::string>();
    if (!id.starts_with("SB")) continue;
    const Row row = read_row(line, kTruth);
    const Result result = answer(row, model::load_model(row.job.model_path()));
    EXPECT_NEAR(result.time.step / row.measured_step, 1, 0.06) << id;
    EXPECT_GT(result.time.parts.at("cpu_optimizer"), 1.7) << id;
    EXPECT_LT(result.time.parts.at("cpu_optimizer"), 2.4) << id;
    ++points;
  }
  EXPECT_EQ(points, 6);
}

TEST(Offload, OverlappedEnginesTakeTheSlowestRoad) {
  Case c = llama();
  c.job.framework.name = "other";
  c.job.framework.label = "LoHan";
  c.job.optimizer.implementation = "cpu";
  c.plan.offload.optimizer = c.plan.offload.gradients = job::Place::kCpu;
  c.plan.gradient_accumulation = 1;
  const StepTime serial = c.time();
  c.plan.offload.schedule = "overlapped";
  const StepTime overlapped = c.time();
  EXPECT_LT(overlapped.step, serial.step);
  EXPECT_GT(overlapped.step, serial.cpu_optimizer);
  EXPECT_EQ(overlapped.bound, Bound::kCpuOptimizer);
}

// cost.md 5: frozen weights on the host cost little.
TEST(Offload, AFrozenBaseIsNearlyFree) {
  Case c = llama();
  c.job.method.kind = job::MethodKind::kQlora;
  c.job.method.rank = 16;
  c.job.method.targets = {"all-linear"};
  c.job.framework.name = "fsdp1";
  c.host.pcie_gbs = 26;
  const double without = c.step();
  c.plan.offload.parameters = job::Place::kCpu;
  EXPECT_LT(c.step(), 1.08 * without);
}

TEST(Offload, NvmeIsSlowerThanRam) {
  Case c = llama();
  c.job.framework.name = "deepspeed";
  c.job.optimizer.implementation = "cpu";
  c.plan.offload.optimizer = c.plan.offload.gradients = job::Place::kCpu;
  const double ram = c.step();
  c.plan.offload.optimizer = job::Place::kNvme;
  c.host.nvme = pricing::Nvme{.read_gbs = 7, .write_gbs = 4};
  const StepTime nvme = c.time();
  EXPECT_GT(nvme.step, ram);
  EXPECT_GT(nvme.nvme_exposed, 0);
  // One drive reads and writes in turn: 16 B in, 14 B out.
  EXPECT_NEAR(nvme_optimizer_seconds(1e9, 7, 4), 1e9 * (16 / (7e9 * 0.85) + 14 / (4e9 * 0.85)), 0.01);
  EXPECT_NEAR(nvme_optimizer_seconds(1e9, 28, 16), 1e9 * std::max(16 / (28e9 * 0.85), 14 / (16e9 * 0.85)), 0.01);
}

TEST(Offload, AFractionIsUpdatedOnTheHost) {
  Case c = llama();
  c.job.framework.name = "deepspeed";
  c.job.optimizer.implementation = "cpu";
  c.plan.offload.optimizer = c.plan.offload.gradients = job::Place::kCpu;
  const double all = c.time().cpu_optimizer;
  c.plan.offload.optimizer_fraction = 0.25;
  EXPECT_NEAR(c.time().cpu_optimizer, all / 4, 1e-9);
}

TEST(Pipeline, BubbleShrinksWithMicroStepsAndInterleaving) {
  Case c = llama();
  c.job.framework.name = "megatron";
  c.plan.sharding.stage = 1;
  c.plan.sharding.shard_degree = 2;
  c.plan.pipeline.degree = 4;
  c.plan.pipeline.virtual_stages = 1;
  c.plan.gradient_accumulation = 4;
  const double few = c.time().communication_exposed / c.step();
  c.plan.gradient_accumulation = 32;
  EXPECT_LT(c.time().communication_exposed / c.step(), 0.3 * few);
  c.plan.gradient_accumulation = 4;
  c.plan.pipeline.virtual_stages = 4;
  EXPECT_LT(c.time().communication_exposed / c.step(), 0.5 * few);
}

// No device, engine, layout or odd figure of a host may give anything but a finite time whose parts are not negative
// and sum to it.
TEST(StepTime, EveryCombinationIsFinite) {
  Case c = llama();
  c.host.pcie_gbs = 0;
  c.host.ddr_gbs = 0;
  c.host.nvme = pricing::Nvme{.read_gbs = 0, .write_gbs = 0};
  c.interconnect.node_gbs = 0;
  c.interconnect.gpu_link_gbs = 0;
  int count = 0;
  for (const char* config :
       {"meta-llama__Meta-Llama-3-8B", "Qwen__Qwen3-30B-A3B", "deepseek-ai__DeepSeek-V3", "FacebookAI__roberta-base"}) {
    c.model = model::load_model(kTruth + "/configs/" + config + ".json");
    for (const char* engine : {"shardfit", "fsdp1", "fsdp2", "deepspeed", "ddp", "megatron", "other"})
      for (const char* word : {"flash", "eager"})
        for (const char* precision : {"fp32", "bf16-mixed", "bf16"}) {
          c.job.framework.name = engine;
          c.job.attention = word;
          c.job.precision = job::Precision{.name = precision};
          const auto work = prepare(c.job, c.model);
          for (const auto& device : hardware::devices()) {
            if (device.is_cpu) continue;
            for (int stage : {0, 1, 2, 3})
              for (job::Place place : {job::Place::kNone, job::Place::kCpu, job::Place::kNvme}) {
                job::Plan plan = c.plan;
                plan.nodes = 2;
                plan.sharding.stage = stage;
                plan.sharding.shard_degree = 4;
                plan.expert_parallel = 2;
                plan.tensor_parallel = 2;
                plan.pipeline.degree = 2;
                plan.offload.optimizer = plan.offload.parameters = plan.offload.gradients = plan.offload.activations =
                    place;
                plan.offload.schedule = stage == 2 ? "overlapped" : "serial";
                const StepTime t = step_time(*work, plan, device, &c.host, &c.interconnect);
                const double sum =
                    t.compute + t.communication_exposed + t.pcie_exposed + t.cpu_optimizer + t.nvme_exposed + t.input;
                ASSERT_TRUE(std::isfinite(t.step) && t.step > 0 && t.low > 0 && std::isfinite(t.high))
                    << config << engine << device.key << stage;
                ASSERT_NEAR(sum, t.step, 1e-9 * t.step);
                ASSERT_GE(std::min({t.compute, t.communication_exposed, t.pcie_exposed, t.cpu_optimizer, t.nvme_exposed,
                                    t.input}),
                          0)
                    << config << " " << engine << " " << device.key << " stage " << stage;
                ++count;
              }
          }
        }
  }
  EXPECT_GT(count, 90000);
}

TEST(StepTime, WithoutASequenceItSaysSo) {
  Case c = llama();
  c.job.sequence_length = 0;
  EXPECT_THROW(c.step(), Error);
}

TEST(Assumptions, AreSaid) {
  Case c = llama();
  c.job.attention.reset();
  c.plan.nodes = 2;
  c.plan.sharding.shard_degree = 16;
  const Result result =
      estimate_time({.job = c.job, .plan = c.plan, .model = c.model, .device = hardware::find_device(c.plan.gpu, "")});
  EXPECT_THAT(result.assumed, testing::Contains(testing::HasSubstr("attention=sdpa")));
  EXPECT_THAT(result.assumed, testing::Contains("interconnect.node_gbs=400"));
}

}  // namespace
}  // namespace shardfit::timing
