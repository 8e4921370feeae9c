#include "selector/job/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"

namespace shardfit::job {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Plan plan_of(const char* text) { return parse_plan(Json::parse(text), "/plan"); }

std::string error_of(const char* text) {
  try {
    plan_of(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(PlanFile, DegreesThatAreNotStatedFollowFromTheGpus) {
  const Plan sharded = plan_of(
      R"({"gpu":"x","gpus_per_node":8,"nodes":2,"tensor_parallel":2,"sharding":{"stage":3,"replicate_degree":2}})");
  EXPECT_EQ(sharded.sharding.shard_degree, 4);
  const Plan replicas = plan_of(R"({"gpu":"x","gpus_per_node":4})");
  EXPECT_EQ(replicas.sharding.shard_degree, 1);
  EXPECT_EQ(replicas.sharding.replicate_degree, 4);
}

TEST(PlanFile, StageZeroSpelledAsShardsMeansReplicas) {
  const Plan a = plan_of(R"({"gpu":"x","gpus_per_node":8,"sharding":{"stage":0,"shard_degree":8}})");
  const Plan b = plan_of(R"({"gpu":"x","gpus_per_node":8,"sharding":{"stage":0,"replicate_degree":8}})");
  EXPECT_EQ(plan_sha256(a), plan_sha256(b));
}

TEST(PlanFile, CanonicalFormReadsBackAsItself) {
  for (
      const char* text :
      {R"({"gpu":"h100_sxm_80gb"})",
       R"({"gpu":"cpu","gpus_per_node":2,"device_memory_gib":1.5,"sharding":{"stage":3,"shard_degree":2,"reshard_after_forward":"always"},"activation_checkpointing":"full"})",
       R"({"gpu":"a","gpus_per_node":8,"sharding":{"stage":3,"shard_degree":8,"reshard_after_forward":4},"activation_checkpointing":{"kind":"selective","modules":["mlp"],"reentrant":false},
               "offload":{"optimizer":"nvme","optimizer_fraction":0.5,"nvme_path":"/n","buffers":4,"pin":true},"schedule":{"unit":["LlamaDecoderLayer"],"prefetch_blocks":2,"limit_gathers":false}})",
       R"({"gpu":"a","gpus_per_node":8,"sharding":{"stage":1},"activation_checkpointing":{"every":2},"schedule":{"unit":3},"allocator":{"expandable_segments":true},
               "deepspeed":{"zero_optimization":{"stage":2,"reduce_bucket_size":"auto","overlap_comm":true},"bind_cores_to_rank":true}})"}) {
    const Plan plan = plan_of(text);
    const auto once = to_json(plan).dump();
    EXPECT_EQ(to_json(plan_of(once.c_str())).dump(), once);
  }
}

TEST(PlanFile, FrameworkNamesWinOverThePlansOwn) {
  const Plan ds = plan_of(
      R"({"gpu":"a","gpus_per_node":8,"sharding":{"stage":1},"deepspeed":{"train_micro_batch_size_per_gpu":4,"gradient_accumulation_steps":"auto",
      "zero_optimization":{"stage":3,"offload_optimizer":{"device":"cpu","ratio":0.4},"offload_param":{"device":"nvme","nvme_path":"/n"}}}})");
  EXPECT_EQ(ds.sharding.stage, 3);
  EXPECT_EQ(ds.sharding.shard_degree, 8);
  EXPECT_EQ(ds.micro_batch, 4);
  EXPECT_EQ(ds.offload.optimizer, Place::kCpu);
  EXPECT_EQ(ds.offload.optimizer_fraction, 0.4);
  EXPECT_EQ(ds.offload.parameters, Place::kNvme);
  EXPECT_TRUE(ds.warnings.empty());
  const Plan fsdp = plan_of(
      R"({"gpu":"a","gpus_per_node":8,"fsdp":{"fsdp_sharding_strategy":"SHARD_GRAD_OP","fsdp_offload_params":true}})");
  EXPECT_EQ(fsdp.sharding.stage, 3);
  EXPECT_EQ(fsdp.sharding.reshard_after_forward, Sharding::Reshard::kFalse);
  EXPECT_EQ(fsdp.offload.optimizer, Place::kCpu);
}

TEST(PlanFile, UnknownFrameworkKeysAreWarnings) {
  const Plan plan =
      plan_of(R"({"gpu":"a","deepspeed":{"zero_optimization":{"overlap_com":true}},"fsdp":{"nonsense":1}})");
  ASSERT_EQ(plan.warnings.size(), 2u);
  EXPECT_THAT(
      plan.warnings[0],
      HasSubstr(
          "/plan/deepspeed/zero_optimization/overlap_com: unknown key \"overlap_com\" has no effect; did you mean \"overlap_comm\"?"));
}

TEST(PlanFile, EveryMistakeNamesItsPlace) {
  struct Case {
    const char* text;
    const char* expected;
  };
  for (
      const Case& c : {
          Case{R"({"gpus_per_node":8})", "/plan/gpu: is missing"},
          Case{R"({"gpu":"a","gpus_per_node":8,"sharding":{"stage":3,"shard_degree":4}, "tensor_parallel":4})",
               "/plan/sharding: "},
          Case{R"({"gpu":"a","gpus_per_node":8,"sharding":{"stage":3,"shard_degree":4,"replicate_degree":1}})",
               "= 4, but gpus_per_node x nodes = 8 x 1 = 8"},
          Case{R"({"gpu":"a","micro_batch":-1})", "/plan/micro_batch: -1 is out of range; it must be at least 1"},
          Case{R"({"gpu":"a","micro_batch":1e30})", "/plan/micro_batch: "},
          Case{R"({"gpu":"a","nodes":4e9})", "/plan/nodes: "},
          Case{
              R"({"gpu":"a","tensor_parallel":1000000,"context_parallel":1000000,"pipeline_parallel":{"degree":1000000}})",
              "/plan/sharding: "},
          Case{R"({"gpu":"a","sharding":{"stage":4}})",
               "/plan/sharding/stage: 4 is out of range; it must be at most 3"},
          Case{R"({"gpu":"a","activation_checkpointing":"ful"})",
               "/plan/activation_checkpointing: \"ful\" is not known here; did you mean \"full\"?"},
          Case{R"({"gpu":"a","offload":{"optimizer":"gpu"}})", "Known: none, cpu, nvme"},
          Case{R"({"gpu":"a","deepspeed":{"zero_optimization":{"stage":2,"offload_param":{"device":"cpu"}}}})",
               "offload_param needs stage 3"},
          Case{R"({"gpu":"a","deepspeed":{"zero_optimization":{"reduce_bucket_size":-5}}})",
               "/plan/deepspeed/zero_optimization/reduce_bucket_size: -5 is out of range"},
          Case{R"({"gpu":"a","fsdp":{"sharding_strategy":"FULL"}})", "FULL_SHARD"},
          Case{R"({"gpu":"a","fsdp":{"cpu_offload":{"offload_params":"yes"}}})",
               "/plan/fsdp/cpu_offload/offload_params"},
          Case{R"({"gpu":"a","microbatch":1})", "did you mean \"micro_batch\"?"},
      })
    EXPECT_THAT(error_of(c.text), HasSubstr(c.expected)) << c.text;
}

TEST(PlanFile, BatchMustAgreeWithTheJob) {
  const Plan plan =
      plan_of(R"({"gpu":"a","gpus_per_node":8,"sharding":{"stage":3},"micro_batch":2,"gradient_accumulation":4})");
  Job job;
  job.sequence_length = 1000;
  job.global_batch_sequences = 64;
  EXPECT_NO_THROW(check_plan_against_job(job, plan));
  job.global_batch_sequences = 32;
  EXPECT_THROW(check_plan_against_job(job, plan), Error);
  job.global_batch_sequences = 0;
  job.global_batch_tokens = 65000;  // 4.06 micro batches of 16 sequences
  EXPECT_NO_THROW(check_plan_against_job(job, plan));
  EXPECT_EQ(batch_rounding(job, plan), "global_batch_tokens=64000 (65000 rounded to whole micro batches)");
  job.global_batch_tokens = 128000;
  EXPECT_THROW(check_plan_against_job(job, plan), Error);
}

}  // namespace
}  // namespace shardfit::job
