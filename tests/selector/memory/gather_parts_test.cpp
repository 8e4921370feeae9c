// Units that are not whole blocks: what golden steps (tests/truth/fake_gpu/fsdp_wrap_torch26.jsonl) do not hold.
#include "selector/memory/gather_parts.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

std::int64_t peak(const std::string& engine, const json& plan_changes, const std::string& model_file = "meta-llama__Meta-Llama-3-8B") {
  const json j = {{"model", "configs/" + model_file + ".json"}, {"method", "full"}, {"sequence_length", 512}, {"precision", "bf16-mixed"}, {"attention", "sdpa"}, {"loss", "plain"}, {"optimizer", {{"name", "adamw"}}}, {"framework", {{"name", engine}}}};
  json p = {{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", 8}, {"nodes", 8}, {"sharding", {{"stage", 3}, {"shard_degree", 64}, {"reshard_after_forward", "always"}}}, {"micro_batch", 1}, {"activation_checkpointing", "full"}};
  p.merge_patch(plan_changes);
  const auto job = job::parse_job(j, std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth");
  const auto plan = job::parse_plan(p);
  const auto model = model::load_model(job.model_path());
  return estimate_memory({job, plan, model, hardware::find_device(plan.gpu, "")}).memory.allocated_peak;
}

std::string refusal(const std::string& engine, const json& plan_changes) {
  try {
    peak(engine, plan_changes);
  } catch (const Error& e) {
    return e.where;
  }
  return "";
}

json unit(const json& names) { return {{"schedule", {{"unit", names}}}}; }
json wrap(const json& fsdp) { return {{"fsdp", fsdp}}; }

TEST(GatherParts, FrameworksNamesMeanTheSame) {
  for (const char* engine : {"fsdp1", "fsdp2"}) {
    const auto block = peak(engine, json::object());
    EXPECT_EQ(peak(engine, unit({"LlamaDecoderLayer"})), block);
    EXPECT_EQ(peak(engine, wrap({{"fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"}, {"fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer"}})), block);
    const auto mlp = peak(engine, unit({"LlamaMLP"}));
    EXPECT_GT(mlp, block);
    EXPECT_EQ(peak(engine, unit({"mlp"})), mlp);
    EXPECT_EQ(peak(engine, wrap({{"transformer_layer_cls_to_wrap", {"LlamaMLP"}}})), mlp);
    EXPECT_EQ(peak(engine, wrap({{"auto_wrap_policy", "LlamaMLP"}})), mlp);
  }
  EXPECT_EQ(peak("fsdp1", wrap({{"min_num_params", 30'000'000}})), peak("fsdp1", wrap({{"auto_wrap_policy", "SIZE_BASED_WRAP"}, {"min_num_params", 30'000'000}})));
}

// Nothing wrapped: all parameters are gathered at once, in 16 bits.
TEST(GatherParts, WithoutWrappingTheModelIsOneUnit) {
  for (const char* engine : {"fsdp1", "fsdp2"}) EXPECT_GT(peak(engine, wrap({{"auto_wrap_policy", "NO_WRAP"}})) - peak(engine, json::object()), 31LL * 218112000 * 2) << engine;
}

TEST(GatherParts, ClassesOfTheModelOnly) {
  EXPECT_EQ(refusal("fsdp2", unit({"LlamaAttention", "Gizmo"})), "/plan/schedule/unit");
  EXPECT_EQ(refusal("fsdp1", unit({"MixtralExperts"})), "/plan/schedule/unit");
  EXPECT_EQ(refusal("deepspeed", unit({"LlamaMLP"})), "/plan/schedule/unit");
  EXPECT_EQ(refusal("deepspeed", unit({"LlamaDecoderLayer"})), "");
  EXPECT_EQ(refusal("fsdp2", wrap({{"min_num_params", 1000000}})), "/plan/fsdp/min_num_params");
}

// Every family's blocks split by every rule, without a parameter lost.
TEST(GatherParts, PartsAreTheBlock) {
  for (const char* file : {"openai-community__gpt2-medium", "Qwen__Qwen3-1.7B", "deepseek-ai__DeepSeek-V2-Lite"}) {
    const auto model = model::load_model(std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth/configs/" + file + ".json");
    const auto job = job::parse_job({{"model", std::string("configs/") + file + ".json"}, {"framework", {{"name", "fsdp1"}}}, {"sequence_length", 64}}, std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth");
    for (const auto& fsdp : {json{{"min_num_params", 1}}, json{{"min_num_params", 3'000'000}}, json{{"auto_wrap_policy", "NO_WRAP"}}, json{{"auto_wrap_policy", "XAttention,XMLP"}}, json{{"auto_wrap_policy", "LayerNorm,DecoderLayer"}}}) {
      const auto plan = job::parse_plan({{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", 8}, {"sharding", {{"stage", 3}, {"shard_degree", 8}}}, {"micro_batch", 1}, {"fsdp", fsdp}});
      const auto& device = hardware::find_device(plan.gpu, "");
      const auto setup = make_setup({job, plan, model, device});
      ASSERT_TRUE(setup.gather_parts) << file << fsdp;
      for (const auto& block : model.blocks) {
        const auto parts = gather_parts(setup, block);
        ASSERT_EQ(parts.of.size(), block.parameters.size());
        std::int64_t all = part_of_block(block, parts.of, BlockParts::kRoot).elements();
        for (int p = 0; p < parts.count + (parts.whole ? 1 : 0); ++p) all += part_of_block(block, parts.of, p).elements();
        EXPECT_EQ(all, block.elements()) << file << fsdp;
        if (fsdp.contains("min_num_params") && fsdp["min_num_params"] == 1) {
          EXPECT_GT(parts.count, 4) << file;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardfit::memory
