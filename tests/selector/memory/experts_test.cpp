// What a mixture-of-experts layer keeps for backward, against transformers' own code (numbers: goldens/experts_kept.py) and
// Megatron's dispatchers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "selector/hardware/device.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/op_rules.hpp"
#include "selector/memory/rank_replay.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

const std::string kTruth = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";
constexpr std::int64_t kTokens = 384, kHidden = 256, kWidth = 512;

json mixtral() {
  return {{"model_type", "mixtral"}, {"architectures", {"MixtralForCausalLM"}}, {"hidden_size", kHidden}, {"intermediate_size", kWidth}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 4}, {"vocab_size", 1000}, {"max_position_embeddings", 1024}, {"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"rms_norm_eps", 1e-5}, {"hidden_act", "silu"}};
}
json gpt_oss() {
  return {{"model_type", "gpt_oss"}, {"architectures", {"GptOssForCausalLM"}}, {"hidden_size", kHidden}, {"intermediate_size", kWidth}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 4}, {"head_dim", 64}, {"vocab_size", 1000}, {"max_position_embeddings", 1024}, {"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"}, {"layer_types", {"full_attention", "full_attention"}}};
}

// Bytes that the block keeps from its router on: what the layer's own forward keeps, its input left out.
std::int64_t kept_by_experts(const json& config, const json& framework, const json& plan_keys = json::object()) {
  const model::Model model = model::parse_model(config.dump(), "config.json");
  const job::Job job = job::parse_job({{"model", "configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json"}, {"method", "full"}, {"sequence_length", kTokens}, {"precision", "bf16"}, {"attention", "flash"},
                                       {"framework", framework}},
                                      kTruth);
  json p = {{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", 8}, {"sharding", {{"stage", 0}, {"shard_degree", 1}, {"replicate_degree", 8}}}};
  p.update(plan_keys);
  const job::Plan plan = job::parse_plan(p);
  const auto s = make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")});
  const UnitSizes unit = unit_sizes(s, model.blocks[0]);
  const Tape tape = block_tape(s, model.blocks[0], unit, {.tokens = s.tokens, .encoder_tokens = s.tokens, .sequences = 1, .sequence = s.sequence});
  std::size_t first = 0;
  while (first < tape.ops.size() && std::string(tape.ops[first].name) != "router") ++first;
  const int in = tape.base(tape.ops.at(first).in.values[0]);
  std::vector<char> seen(tape.tensors.size(), 0);
  std::int64_t bytes = 0;
  for (std::size_t k = first; k < tape.ops.size(); ++k) {
    for (int t : tape.ops[k].saves) {
      const int b = tape.base(t);
      if (b != in && !seen[static_cast<std::size_t>(b)]) bytes += tape.bytes(b);
      seen[static_cast<std::size_t>(b)] = 1;
    }
    for (auto e : tape.ops[k].extra) bytes += e;
  }
  return bytes;
}

void expect_within(std::int64_t ours, double measured, double share) { EXPECT_NEAR(static_cast<double>(ours), measured, measured * share); }

TEST(Experts, KeepWhatTransformersKeeps) {
  const json loop = {{"name", "ddp"}, {"trainer", "transformers"}, {"trainer_version", "4.57.6"}}, grouped = {{"name", "ddp"}, {"trainer", "transformers"}, {"trainer_version", "5.0.0"}};
  expect_within(kept_by_experts(mixtral(), loop), 4362240, 0.01);
  expect_within(kept_by_experts(gpt_oss(), loop), 6706176, 0.01);
  expect_within(kept_by_experts(mixtral(), grouped), 3976736, 0.01);
  expect_within(kept_by_experts(gpt_oss(), grouped), 6325280, 0.01);
}

TEST(Experts, QuantisedOnlyWhereTheyAreLinearLayers) {
  const auto resting = [](const json& config, const char* version) {
    const model::Model model = model::parse_model(config.dump(), "config.json");
    const job::Job job = job::parse_job({{"model", "configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json"}, {"method", {{"kind", "qlora"}, {"rank", 8}, {"targets", {"q_proj"}}, {"quantization", "nf4"}}},
                                         {"sequence_length", kTokens}, {"precision", "bf16"}, {"framework", {{"name", "ddp"}, {"trainer", "transformers"}, {"trainer_version", version}}}},
                                        kTruth);
    const job::Plan plan = job::parse_plan({{"gpu", "h100_sxm_80gb"}});
    const auto s = make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")});
    return static_cast<double>(unit_sizes(s, model.blocks[0]).rest_bytes);
  };
  const double experts = 8.0 * 3 * kHidden * kWidth;
  EXPECT_NEAR(resting(mixtral(), "5.0.0") - resting(mixtral(), "4.57.6"), experts * (2 - 0.5 - 4.0 / 64), 1.0);
  EXPECT_EQ(resting(gpt_oss(), "5.0.0"), resting(gpt_oss(), "4.57.6"));
}

TEST(Experts, MegatronKeepsTheExpertsInputsAndNotTheirResults) {
  const json framework = {{"name", "megatron"}};
  const std::int64_t rows = kTokens * 2;
  const auto kept = [&](const json& flags, std::int64_t ep = 1) { return static_cast<double>(kept_by_experts(mixtral(), framework, {{"expert_parallel", ep}, {"megatron", flags}})); };
  const double hidden = rows * kHidden * 2, width = rows * kWidth * 2;
  EXPECT_NEAR(kept({}), hidden + 3 * width, 0.15 * hidden);          // sorted tokens, gate and up, their product; the router's tables
  EXPECT_NEAR(kept({}, 4), kept({}), 0.01 * hidden) << "exchanged tokens are not kept, routing is balanced";
  EXPECT_NEAR(kept({{"moe-token-dispatcher-type", "allgather"}}, 4), kept({}, 4), 0.01 * hidden);
  EXPECT_NEAR(kept({{"moe-token-dispatcher-type", "flex"}}, 4), kept({}, 4), 0.01 * hidden);
  EXPECT_NEAR(kept({{"moe-expert-capacity-factor", 2.0}, {"moe-pad-expert-input-to-capacity", true}}), 2 * kept({}), 0.15 * hidden);
}

TEST(Experts, MegatronRecomputesWhatItsModulesName) {
  const json framework = {{"name", "megatron"}};
  const auto kept = [&](const json& modules) {
    return kept_by_experts(mixtral(), framework, {{"activation_checkpointing", {{"kind", "selective"}, {"modules", modules}}}});
  };
  const std::int64_t product = kTokens * 2 * kWidth * 2;
  const std::int64_t all = kept({"core_attn"});
  EXPECT_EQ(all - kept({"moe_act"}), product + kTokens * 2 * 4);     // the product and the router's weights
  EXPECT_LT(kept({"moe"}), all / 100);
}

}  // namespace
}  // namespace shardfit::memory
