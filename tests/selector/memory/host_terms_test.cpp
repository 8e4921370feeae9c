// Golden sums of host memory, pinned memory and NVMe, written out term by term from what each framework's source allocates (the files
// are named in selector/memory/host_terms.hpp). P is the model's parameter count; every expression is bytes of one node.
#include "selector/memory/host_terms.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/setup.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;
using Where = HostTerm::Where;

constexpr std::int64_t P = 1100048384;    // TinyLlama 1.1B
constexpr std::int64_t kLayers = 22, kHidden = 2048;

struct Sums {
  std::vector<HostTerm> terms;
  std::int64_t host = 0, pinned = 0, nvme = 0, rounding = 0;
  std::int64_t of(const std::string& name, Where where) const {
    for (const auto& t : terms)
      if (t.name == name && t.where == where) return t.bytes;
    ADD_FAILURE() << "no term " << name;
    return -1;
  }
};

json deepspeed_job() {
  return {{"model", "configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json"}, {"method", "full"}, {"sequence_length", 2048}, {"precision", "bf16-mixed"},
          {"optimizer", {{"name", "adamw"}, {"states", "fp32"}}}, {"framework", {{"name", "deepspeed"}}}};
}
json plan_of(int stage, int nodes, int gpus, json offload) {
  return {{"gpu", "a100_sxm_80gb"}, {"gpus_per_node", gpus}, {"nodes", nodes}, {"micro_batch", 1}, {"offload", std::move(offload)},
          {"sharding", {{"stage", stage}, {"shard_degree", nodes * gpus}}}};
}

Sums sums(const json& job_object, const json& plan_object) {
  const job::Job job = job::parse_job(job_object, std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth");
  const job::Plan plan = job::parse_plan(plan_object);
  const model::Model model = model::load_model(job.model_path());
  const Request request{job, plan, model, hardware::find_device(plan.gpu, "")};
  const Setup setup = make_setup(request);
  Sums s;
  s.terms = host_terms(setup, model_sizes(setup));
  for (const auto& t : s.terms) {
    (t.where == Where::kNvme ? s.nvme : s.host) += t.bytes;
    if (t.where == Where::kPinned) s.pinned += t.bytes;
  }
  s.rounding = pinned_rounding_bytes(setup, s.terms);
  return s;
}

TEST(HostTerms, NothingOffloadedIsNothingOnTheHost) { EXPECT_TRUE(sums(deepspeed_job(), plan_of(3, 1, 8, json::object())).terms.empty()); }

// 1. ZeRO-3, optimizer on the host: gradient in 16 bit 2, gradient of the update 4 (both pinned), master 4, two states of 4.
TEST(HostTerms, Zero3Optimizer) {
  const Sums s = sums(deepspeed_job(), plan_of(3, 1, 8, {{"optimizer", "cpu"}}));
  EXPECT_EQ(s.host, 2 * P + 4 * P + 4 * P + 2 * 4 * P);
  EXPECT_EQ(s.pinned, 2 * P + 4 * P);
  EXPECT_EQ(s.nvme, 0);
}

// 2. The same with parameters: + 2 bytes, always pinned. On two nodes each holds its half.
TEST(HostTerms, Zero3OptimizerAndParametersOnTwoNodes) {
  const Sums s = sums(deepspeed_job(), plan_of(3, 2, 4, {{"optimizer", "cpu"}, {"parameters", "cpu"}}));
  EXPECT_EQ(s.host, (2 * P + 4 * P + 4 * P + 2 * 4 * P + 2 * P) / 2);
  EXPECT_EQ(s.pinned, (2 * P + 4 * P + 2 * P) / 2);
}

// 3. pin_memory false by DeepSpeed's key for the optimizer: what is left pinned are the parameters.
TEST(HostTerms, Zero3WithoutPinning) {
  json plan = plan_of(3, 1, 8, json::object());
  plan["deepspeed"] = {{"zero_optimization", {{"stage", 3}, {"offload_optimizer", {{"device", "cpu"}, {"pin_memory", false}}}, {"offload_param", {{"device", "cpu"}, {"pin_memory", true}}}}}};
  const Sums s = sums(deepspeed_job(), plan);
  EXPECT_EQ(s.host, 2 * P + 4 * P + 4 * P + 8 * P + 2 * P);
  EXPECT_EQ(s.pinned, 2 * P);
}

// 4. ratio 0.5 over sub-groups of 5e7: a rank's 137,506,048 elements make 3 of them, floor(0.5 x 3) = 1 stays on the device.
TEST(HostTerms, Zero3RatioCountsSubGroups) {
  json plan = plan_of(3, 1, 8, json::object());
  plan["deepspeed"] = {{"zero_optimization", {{"stage", 3}, {"sub_group_size", 50000000}, {"offload_optimizer", {{"device", "cpu"}, {"ratio", 0.5}}}}}};
  const Sums s = sums(deepspeed_job(), plan);
  const std::int64_t mine = P / 8 - 50000000;
  EXPECT_EQ(s.host, 8 * (2 * (P / 8) + 4 * mine + 4 * mine + 8 * mine));
  EXPECT_EQ(s.pinned, 8 * (2 * (P / 8) + 4 * mine));
}

// 5. ZeRO-Infinity: optimizer and parameters on drives. In memory: the 16-bit gradient, 4 locked buffers of the largest sub-group (here
// the whole share), max_in_cpu elements of parameters, 5 locked buffers of 1e8 elements.
TEST(HostTerms, ZeroInfinity) {
  json plan = plan_of(3, 1, 8, {{"nvme_path", "/nvme"}});
  plan["deepspeed"] = {{"zero_optimization", {{"stage", 3}, {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/nvme"}}},
                                              {"offload_param", {{"device", "nvme"}, {"nvme_path", "/nvme"}, {"max_in_cpu", 100000000}}}}}};
  const Sums s = sums(deepspeed_job(), plan);
  const std::int64_t mine = P / 8, kept = 100000000;
  EXPECT_EQ(s.nvme, 8 * (4 * mine + 4 * mine + 8 * mine + 2 * (mine - kept)));
  EXPECT_EQ(s.host, 8 * (2 * mine + 4 * (4 * mine) + 2 * kept + 5 * 2 * 100000000LL));
  EXPECT_EQ(s.pinned, s.host);
}

// 6. ZeRO-2 with accumulation: everything of the partition but the states is pinned, 2 bytes of accumulated gradients come on top, and one
// 16-bit copy of the largest tensor (the token table).
TEST(HostTerms, Zero2WithAccumulation) {
  json plan = plan_of(2, 1, 4, {{"optimizer", "cpu"}});
  plan["gradient_accumulation"] = 4;
  const Sums s = sums(deepspeed_job(), plan);
  const std::int64_t table = 4 * 2 * 32000LL * kHidden;
  EXPECT_EQ(s.host, 4 * P + 2 * P + 4 * P + 8 * P + 2 * P + table);
  EXPECT_EQ(s.pinned, 4 * P + 2 * P + 4 * P + 2 * P + table);
}

// 7. FSDP2, CPUOffloadPolicy: fp32 shards and gradients pinned, states not; shards are rows of dimension 0, so 5461 rows on 8 ranks are
// 683 each (GaLore's Llama of 1.3B: 24 layers, width 2048, MLP 5461, vocabulary 32000).
TEST(HostTerms, Fsdp2PadsRows) {
  json job = deepspeed_job();
  job["model"] = "configs/GaLore__llama_1b.json";
  job["framework"] = {{"name", "fsdp2"}};
  const Sums s = sums(job, plan_of(3, 1, 8, {{"parameters", "cpu"}, {"gradients", "cpu"}, {"optimizer", "cpu"}}));
  const std::int64_t layer = 4 * (2048 / 8) * 2048LL + 2 * 683 * 2048LL + (2048 / 8) * 5461LL + 2 * (2048 / 8);
  const std::int64_t mine = 24 * layer + 2 * (32000 / 8) * 2048LL + 2048 / 8;
  EXPECT_EQ(s.host, 8 * (4 * mine + 4 * mine + 2 * 4 * mine));
  EXPECT_EQ(s.pinned, 8 * (4 * mine + 4 * mine));
}

// 8. FSDP1 with LoRA of rank 16 on q and v, adapters in fp32: the frozen base in bf16, the adapters' own gradient and states.
TEST(HostTerms, Fsdp1Lora) {
  json job = deepspeed_job();
  job["framework"] = {{"name", "fsdp1"}, {"trainer", "transformers"}};
  job["precision"] = "bf16";
  job["optimizer"] = {{"name", "adamw"}, {"states", "fp32"}};
  job["method"] = {{"kind", "lora"}, {"rank", 16}, {"alpha", 32}, {"targets", {"q_proj", "v_proj"}}, {"adapter_dtype", "fp32"}};
  const Sums s = sums(job, plan_of(3, 1, 4, {{"parameters", "cpu"}, {"gradients", "cpu"}, {"optimizer", "cpu"}}));
  const std::int64_t adapters = kLayers * (16 * (2048 + 2048) + 16 * (2048 + 256));
  EXPECT_EQ(s.host, 2 * P + 4 * adapters + 4 * adapters + 2 * 4 * adapters);
  EXPECT_EQ(s.pinned, 2 * P + 4 * adapters + 4 * adapters);
}

// 9. Our runtime: each part in one locked piece; what is not offloaded is not there.
TEST(HostTerms, OwnRuntime) {
  json job = deepspeed_job();
  job["framework"] = {{"name", "shardfit"}};
  job["precision"] = {{"parameters", "bf16"}, {"master", "fp32"}, {"compute", "bf16"}, {"gradients", "fp32"}, {"reduce", "fp32"}};
  const Sums s = sums(job, plan_of(3, 1, 8, {{"optimizer", "cpu"}, {"optimizer_fraction", 0.5}}));
  EXPECT_EQ(s.host, (4 * P + 8 * P + 4 * P) / 2);
  EXPECT_EQ(s.pinned, s.host);
  EXPECT_EQ(s.rounding, 0);
}

// 10. Our runtime with drives: master and states in a file a rank; 6 tiles of 2^20 elements hold master, two states and gradient.
TEST(HostTerms, OwnRuntimeOnDrives) {
  json job = deepspeed_job();
  job["framework"] = {{"name", "shardfit"}};
  job["precision"] = {{"parameters", "bf16"}, {"master", "fp32"}, {"compute", "bf16"}, {"gradients", "fp32"}, {"reduce", "fp32"}};
  const Sums s = sums(job, plan_of(3, 1, 8, {{"optimizer", "nvme"}, {"nvme_path", "/nvme"}, {"buffers", 6}, {"tile_elements", 1 << 20}}));
  EXPECT_EQ(s.nvme, 4 * P + 8 * P);
  EXPECT_EQ(s.host, 4 * P + 8 * 6 * ((4 + 8 + 4) * 1048576LL));
  EXPECT_EQ(s.pinned, s.host);
}

// 11. Activations: the input of each of 22 checkpointed blocks, 2048 tokens of 2048 in bf16.
TEST(HostTerms, CheckpointedInputs) {
  json job = deepspeed_job();
  job["framework"] = {{"name", "fsdp2"}};
  json plan = plan_of(3, 1, 2, {{"activations", "cpu"}});
  plan["activation_checkpointing"] = "full";
  const Sums s = sums(job, plan);
  EXPECT_EQ(s.host, 2 * kLayers * 2048 * kHidden * 2);
  EXPECT_EQ(s.pinned, s.host);
}

// torch rounds each pinned allocation up to a power of two: 8 ranks' 16-bit gradients of 275,012,096 bytes take 512 MiB each.
TEST(HostTerms, PinnedMemoryComesInPowersOfTwo) {
  const Sums s = sums(deepspeed_job(), plan_of(3, 1, 8, {{"optimizer", "cpu"}}));
  const std::int64_t sixteen = 2 * P / 8, update = 4 * P / 8;
  EXPECT_NEAR(static_cast<double>(s.rounding), 8.0 * static_cast<double>(((1LL << 29) - sixteen) + ((1LL << 30) - update)), 16);
}

TEST(HostTerms, WhatAFrameworkDoesNotOffloadIsRefused) {
  const auto refusal = [](json offload, const char* framework) {
    json job = deepspeed_job();
    job["framework"] = {{"name", framework}};
    try {
      sums(job, plan_of(3, 1, 8, std::move(offload)));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal({{"optimizer", "cpu"}}, "fsdp2"), testing::AllOf(testing::HasSubstr("/plan/offload/optimizer"), testing::HasSubstr("together")));
  EXPECT_THAT(refusal({{"parameters", "nvme"}, {"nvme_path", "/nvme"}}, "fsdp1"), testing::HasSubstr("NVMe"));
}

}  // namespace
}  // namespace shardfit::memory
