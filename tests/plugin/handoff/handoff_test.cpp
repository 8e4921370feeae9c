#include "plugin/handoff/handoff.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "plugin/handoff/exports.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"

namespace shardfit::handoff {
namespace {

using testing::HasSubstr;
using testing::Not;

job::Job some_job(const char* extra = "{}") {
  Json j = parse_json(
      R"({"model": "m/", "sequence_length": 4096, "global_batch_sequences": 64, "precision": "bf16-mixed", "data": {"train": "corpus"},
                         "train": {"learning_rate": 3e-4, "adam_beta2": 0.95, "weight_decay": 0.1, "warmup_steps": 10}, "duration": {"steps": 100}})");
  j.update(parse_json(extra));
  return job::parse_job(j, "/base");
}

job::Plan some_plan(const char* extra = "{}") {
  Json p = parse_json(
      R"({"gpu": "h100_sxm_80gb", "gpus_per_node": 8, "nodes": 2, "sharding": {"stage": 3, "shard_degree": 16}, "micro_batch": 2, "gradient_accumulation": 2,
                         "activation_checkpointing": "full"})");
  p.merge_patch(parse_json(extra));
  return job::parse_plan(p);
}

TEST(DeepSpeed, BatchesPrecisionAndStage) {
  const auto j = Json::parse(deepspeed_json(some_job(), some_plan()));
  EXPECT_EQ(j["train_batch_size"], 64);
  EXPECT_EQ(j["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(j["gradient_accumulation_steps"], 2);
  EXPECT_EQ(j["gradient_clipping"], 1.0);
  EXPECT_EQ(j["bf16"]["enabled"], true);
  EXPECT_FALSE(j.contains("fp16"));
  EXPECT_EQ(j["zero_optimization"]["stage"], 3);
  EXPECT_EQ(j["optimizer"]["type"], "AdamW");
  EXPECT_EQ(j["optimizer"]["params"]["lr"], 3e-4);
  EXPECT_EQ(j["optimizer"]["params"]["betas"][1], 0.95);
  EXPECT_FALSE(j["zero_optimization"].contains("offload_optimizer"));
}

TEST(DeepSpeed, BucketsAreElementsAndOwnKnobsWin) {
  const auto plan = some_plan(
      R"({"schedule": {"reduce_bucket_bytes": 1000000, "prefetch_bytes": 2000000, "keep_resident_below": 12345},
      "offload": {"optimizer": "cpu", "parameters": "nvme", "nvme_path": "/nvme", "optimizer_fraction": 0.6},
      "deepspeed": {"zero_optimization": {"overlap_comm": false, "sub_group_size": 77}}})");
  const auto z = Json::parse(deepspeed_json(some_job(), plan))["zero_optimization"];
  EXPECT_EQ(z["reduce_bucket_size"], 500000);  // bf16 gradients: 2 bytes each
  EXPECT_EQ(z["stage3_prefetch_bucket_size"], 1000000);
  EXPECT_EQ(z["stage3_param_persistence_threshold"], 12345);
  EXPECT_EQ(z["offload_optimizer"]["device"], "cpu");
  EXPECT_EQ(z["offload_optimizer"]["ratio"], 0.6);
  EXPECT_EQ(z["offload_param"]["device"], "nvme");
  EXPECT_EQ(z["offload_param"]["nvme_path"], "/nvme");
  EXPECT_EQ(z["overlap_comm"], false);
  EXPECT_EQ(z["sub_group_size"], 77);
}

TEST(DeepSpeed, OtherPrecisionsAndTrainers) {
  EXPECT_EQ(Json::parse(deepspeed_json(some_job(R"({"precision": "fp16-mixed"})"), some_plan()))["fp16"]["enabled"],
            true);
  const auto fp32 = Json::parse(deepspeed_json(some_job(R"({"precision": "fp32"})"), some_plan()));
  EXPECT_FALSE(fp32.contains("bf16"));
  EXPECT_FALSE(fp32.contains("fp16"));
  EXPECT_EQ(Json::parse(deepspeed_json(some_job(R"({"precision": "bf16"})"),
                                       some_plan()))["bf16"]["bf16_master_weights_and_grads"],
            true);
  EXPECT_FALSE(Json::parse(deepspeed_json(some_job(), some_plan()))["bf16"].contains("bf16_master_weights_and_grads"));
  const auto hf = Json::parse(
      deepspeed_json(some_job(R"({"framework": {"name": "deepspeed", "trainer": "transformers"}})"), some_plan()));
  EXPECT_EQ(hf["optimizer"]["params"]["lr"], "auto");
  const auto other = Json::parse(deepspeed_json(some_job(R"({"optimizer": {"name": "adafactor"}})"), some_plan()));
  EXPECT_FALSE(other.contains("optimizer"));
  EXPECT_EQ(other["zero_allow_untested_optimizer"], true);
}

TEST(Accelerate, Fsdp2) {
  const auto y = accelerate_yaml(some_job(R"({"framework": {"name": "fsdp2"}})"), some_plan());
  for (const char* line : {"distributed_type: FSDP\n", "mixed_precision: bf16\n", "num_machines: 2\n",
                           "num_processes: 16\n", "  fsdp_version: 2\n", "  fsdp_reshard_after_forward: true\n",
                           "  fsdp_activation_checkpointing: true\n", "  fsdp_offload_params: false\n"}) {
    EXPECT_THAT(y, HasSubstr(line));
  }
  EXPECT_THAT(y, Not(HasSubstr("parallelism_config")));
  const auto hybrid = accelerate_yaml(
      some_job(R"({"framework": {"name": "fsdp2"}})"),
      some_plan(R"({"sharding": {"shard_degree": 8, "replicate_degree": 2, "reshard_after_forward": false}})"));
  EXPECT_THAT(hybrid, HasSubstr("parallelism_config_dp_replicate_size: 2\n"));
  EXPECT_THAT(hybrid, HasSubstr("parallelism_config_dp_shard_size: 8\n"));
  EXPECT_THAT(hybrid, HasSubstr("  fsdp_reshard_after_forward: false\n"));
}

TEST(Accelerate, Fsdp1AndPlainDataParallel) {
  const auto y = accelerate_yaml(
      some_job(R"({"framework": {"name": "fsdp1"}})"),
      some_plan(
          R"({"sharding": {"shard_degree": 8, "replicate_degree": 2}, "schedule": {"unit": ["LlamaDecoderLayer"]}})"));
  EXPECT_THAT(y, HasSubstr("fsdp_sharding_strategy: HYBRID_SHARD\n"));
  EXPECT_THAT(y, HasSubstr("fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"));
  const auto ddp =
      accelerate_yaml(some_job(R"({"framework": {"name": "ddp"}})"),
                      some_plan(R"({"sharding": {"stage": 0, "shard_degree": 1, "replicate_degree": 16}})"));
  EXPECT_THAT(ddp, HasSubstr("distributed_type: MULTI_GPU\n"));
  EXPECT_THAT(ddp, Not(HasSubstr("fsdp_config")));
}

TEST(Torchtitan, FlagsAndToml) {
  const auto plan = some_plan(
      R"({"sharding": {"shard_degree": 4}, "tensor_parallel": 2, "pipeline_parallel": {"degree": 2, "schedule": "interleaved_1f1b"}, "micro_batch": 1, "gradient_accumulation": 16})");
  const auto args = torchtitan_args(some_job(), plan);
  for (const char* line :
       {"--training.local_batch_size=16\n", "--training.global_batch_size=64\n", "--training.seq_len=4096\n",
        "--training.steps=100\n", "--parallelism.data_parallel_shard_degree=4\n",
        "--parallelism.tensor_parallel_degree=2\n", "--parallelism.pipeline_parallel_degree=2\n",
        "--parallelism.pipeline_parallel_schedule=Interleaved1F1B\n",
        "--parallelism.pipeline_parallel_microbatch_size=1\n", "\nactivation-checkpoint:full\n",
        "--optimizer.param_groups.0.optimizer_kwargs.betas 0.9 0.95\n", "--training.no-enable_cpu_offload\n",
        "--training.mixed_precision_param=bfloat16\n"}) {
    EXPECT_THAT(args, HasSubstr(line));
  }
  EXPECT_THAT(args, Not(HasSubstr("\n\n")));
  // What has no flag is said, not only written down as something else.
  EXPECT_EQ(torchtitan_note(plan), "");
  EXPECT_THAT(torchtitan_note(some_plan(R"({"activation_checkpointing": {"every": 2}})")), HasSubstr("every 2. block"));
  const auto toml = torchtitan_toml(some_job(), some_plan(R"({"activation_checkpointing": {"every": 2}})"));
  for (const char* line :
       {"[training]\n", "local_batch_size = 2\n", "enable_cpu_offload = false\n",
        "mixed_precision_param = \"bfloat16\"\n", "[parallelism]\n", "data_parallel_shard_degree = 16\n",
        "[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"2\"\n"}) {
    EXPECT_THAT(toml, HasSubstr(line));
  }
}

TEST(SbatchOptions, TakesTheShareOfTheNode) {
  const auto plan = some_plan(
      R"({"gpus_per_node": 4, "nodes": 1, "sharding": {"shard_degree": 4}, "micro_batch": 1, "gradient_accumulation": 16})");
  const auto o = sbatch_options(plan, {.partition = "h100",
                                       .features = {"fin3", "nvlink"},
                                       .slurm_gpu_type = "h100",
                                       .run_seconds_high = 3601,
                                       .node_ram_gib = 1000,
                                       .node_cpus = 176,
                                       .node_gpus = 8});
  EXPECT_EQ(o.set, (Pairs{{"partition", "h100"},
                          {"nodes", "1"},
                          {"ntasks-per-node", "4"},
                          {"gpus-per-node", "h100:4"},
                          {"cpus-per-task", "22"},
                          {"mem", "512000M"},
                          {"constraint", "fin3&nvlink"}}));
  EXPECT_EQ(o.defaults, (Pairs{{"time", "01:01:00"}}));
}

TEST(SbatchOptions, HostMemoryOfThePredictionAndLimitsOfTheNode) {
  auto plan = some_plan(
      R"({"gpus_per_node": 1, "nodes": 1, "sharding": {"stage": 0, "shard_degree": 1}, "micro_batch": 1, "gradient_accumulation": 64, "cpus_per_gpu": 500})");
  handoff::Request r{.partition = "p",
                     .run_seconds_high = 1e6,
                     .max_seconds = 86400,
                     .node_ram_gib = 64,
                     .node_cpus = 16,
                     .node_gpus = 4,
                     .host_bytes = std::int64_t{40} << 30};
  auto value = [](const Pairs& pairs, const std::string& name) {
    for (const auto& [n, v] : pairs) {
      if (n == name) return v;
    }
    return std::string();
  };
  auto o = sbatch_options(plan, r);
  EXPECT_EQ(value(o.set, "mem"), "51200M");            // 1.25 x 40 GiB, more than the quarter share
  EXPECT_EQ(value(o.set, "gpus-per-node"), "1");       // no type
  EXPECT_EQ(value(o.set, "cpus-per-task"), "16");      // at most the node
  EXPECT_EQ(value(o.defaults, "time"), "1-00:00:00");  // at most the partition's MaxTime
  r.host_bytes = std::int64_t{100} << 30;
  EXPECT_EQ(value(sbatch_options(plan, r).set, "mem"), "65536M");
  plan.gpu = "cpu";
  EXPECT_EQ(value(sbatch_options(plan, r).set, "gpus-per-node"), "");
}

TEST(SlurmTime, RoundsUpToMinutes) {
  EXPECT_EQ(slurm_time(1), "00:01:00");
  EXPECT_EQ(slurm_time(60), "00:01:00");
  EXPECT_EQ(slurm_time(61), "00:02:00");
  EXPECT_EQ(slurm_time(86400 + 3600), "1-01:00:00");
}

class FilesTest : public testing::Test {
 protected:
  std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("shardfit_handoff_" + std::to_string(::getpid()));
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }
};

TEST_F(FilesTest, AreNamedByContentAndNeverChange) {
  const auto plan = some_plan();
  const auto a = write_files(some_job(), plan, "{}\n", root_, "");
  EXPECT_EQ(a.folder, (root_ / ".shardfit" / job::plan_sha256(plan)).string());
  EXPECT_EQ(sha256_hex(read_file(a.folder + "/plan.json")), a.plan_sha256);
  for (const char* name : {"plan.json", "job.json", "deepspeed.json", "accelerate_fsdp.yaml", "torchtitan.args",
                           "torchtitan.toml", "decision.json"})
    EXPECT_TRUE(std::filesystem::exists(a.folder + "/" + name)) << name;
  EXPECT_EQ(write_files(some_job(), plan, "{}\n", root_, "").folder, a.folder);
  const auto before = read_file(a.folder + "/decision.json");
  const auto b = write_files(some_job(), plan, "{\"other\": 1}\n", root_, "");
  EXPECT_NE(b.folder, a.folder);
  EXPECT_EQ(b.plan_sha256, a.plan_sha256);
  EXPECT_EQ(read_file(a.folder + "/decision.json"), before);
  const auto c = write_files(some_job(), plan, "{}\n", "/nowhere", (root_ / "shared").string());
  EXPECT_EQ(c.folder, (root_ / "shared" / a.plan_sha256).string());
}

TEST_F(FilesTest, TheJobFileIsReadTheSameFromThere) {
  auto job = some_job();
  job.file = "/base/llama.json";
  const auto files = write_files(job, some_plan(), "{}\n", root_, "");
  const auto again = job::read_job(files.folder + "/job.json");
  EXPECT_EQ(again.model_path(), "/base/m/");
  ASSERT_TRUE(again.data.has_value());
  EXPECT_EQ(again.resolve(again.data->train.at(0)), "/base/corpus");
  EXPECT_EQ(again.output, "/base/llama");
  EXPECT_EQ(job::plan_sha256(job::read_plan(files.folder + "/plan.json")), files.plan_sha256);
}

}  // namespace
}  // namespace shardfit::handoff
