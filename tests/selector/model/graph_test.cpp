// Every model file of tests/truth: the graph of each block is well formed, and its parameters carry the published names.
#include <algorithm>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "selector/model/model.hpp"

namespace shardfit::model {
namespace {

const std::string kTruth = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth/";

std::vector<std::string> files() {
  std::vector<std::string> all;
  for (const char* folder : {"configs", "models"})
    for (const auto& entry : std::filesystem::directory_iterator(kTruth + folder))
      if (entry.path().extension() == ".json") all.push_back(entry.path().string());
  std::sort(all.begin(), all.end());
  return all;
}

void check_block(const Block& b, const std::string& what) {
  SCOPED_TRACE(what + " " + b.class_name);
  const auto tensors = static_cast<TensorId>(b.tensors.size());
  std::vector<int> produced(b.tensors.size(), 0), parameters(b.parameters.size(), 0);
  std::set<TensorId> used;
  const auto tensor = [&](TensorId t) -> const Tensor& { return b.tensors.at(static_cast<std::size_t>(t)); };
  for (const Op& op : b.ops) {
    ASSERT_FALSE(op.outs.empty()) << op.module;
    for (TensorId t : op.in) {
      ASSERT_LT(t, tensors);
      used.insert(t);
    }
    for (TensorId t : op.outs) {
      ASSERT_LT(t, tensors);
      EXPECT_EQ(produced[static_cast<std::size_t>(t)]++, 0) << tensor(t).name << " produced twice";
    }
    for (int p : op.params) {
      ASSERT_LT(static_cast<std::size_t>(p), b.parameters.size());
      ++parameters[static_cast<std::size_t>(p)];
    }
    const std::int64_t in = tensor(op.in.front()).width, out = tensor(op.outs.front()).width;
    switch (op.kind) {
      case OpKind::kLinear: {
        EXPECT_EQ(in, op.in_features) << op.module;
        EXPECT_EQ(out, op.out_features) << op.module;
        if (!op.params.empty() && b.parameters[static_cast<std::size_t>(op.params.front())].shape.size() == 2) {
          const auto& shape = b.parameters[static_cast<std::size_t>(op.params.front())].shape;
          EXPECT_EQ(shape[op.transposed_weight ? 0 : 1], in) << op.module;
          EXPECT_EQ(shape[op.transposed_weight ? 1 : 0], out) << op.module;
        }
        break;
      }
      case OpKind::kAttention: {
        const AttentionShape& a = op.attention;
        ASSERT_EQ(op.in.size(), 3u);
        EXPECT_EQ(in, a.heads * a.head_dim) << op.module;
        EXPECT_EQ(tensor(op.in[1]).width, a.kv_heads * a.head_dim) << op.module;
        EXPECT_EQ(tensor(op.in[2]).width, a.kv_heads * a.value_head_dim) << op.module;
        EXPECT_EQ(out, a.heads * a.value_head_dim) << op.module;
        EXPECT_EQ(a.heads % a.kv_heads, 0) << op.module;
        break;
      }
      case OpKind::kSplit: {
        std::int64_t sum = 0;
        for (TensorId t : op.outs) sum += tensor(t).width;
        EXPECT_EQ(sum, in) << op.module;
        break;
      }
      case OpKind::kAdd:
      case OpKind::kGatedActivation: EXPECT_EQ(in, tensor(op.in.at(1)).width) << op.module; break;
      case OpKind::kNorm:
        EXPECT_GT(op.group, 0);
        EXPECT_EQ(in % op.group, 0) << op.module;
        break;
      case OpKind::kExperts: EXPECT_EQ(tensor(op.in.at(1)).width, op.moe.top_k) << op.module; break;
      default: break;
    }
  }
  // Program order: an operator reads what was there before it.
  std::vector<bool> there(b.tensors.size(), true);
  for (const Op& op : b.ops)
    for (TensorId t : op.outs) there[static_cast<std::size_t>(t)] = false;
  for (const Op& op : b.ops) {
    for (TensorId t : op.in) EXPECT_TRUE(there[static_cast<std::size_t>(t)]) << op.module << " reads " << tensor(t).name << " too early";
    for (TensorId t : op.outs) there[static_cast<std::size_t>(t)] = true;
  }
  EXPECT_TRUE(b.ops.empty() || produced[static_cast<std::size_t>(b.output)] == 1) << "nothing produces the output";
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = b.parameters[i].name;
    if (name.find("mtp_layers") == std::string::npos && name.find("mask_token") == std::string::npos) {
      EXPECT_GT(parameters[i], 0) << name << " is used by no operator";
    }
  }
}

TEST(Graph, EveryBlockOfEveryModelIsWellFormed) {
  for (const auto& file : files()) {
    SCOPED_TRACE(file);
    const Model m = load_model(file);
    check_block(m.embedding, "embedding");
    check_block(m.head, "head");
    for (const Block& b : m.blocks) {
      check_block(b, "block");
      EXPECT_EQ(b.tensors[static_cast<std::size_t>(b.input)].width, m.hidden);
      EXPECT_EQ(b.tensors[static_cast<std::size_t>(b.output)].width, m.hidden);
      EXPECT_NE(b.prefix.find("{}"), std::string::npos);
    }
    std::int64_t layers = 0;
    for (const auto& run : m.body) layers += run.count;
    EXPECT_EQ(layers, m.layers);
  }
}

TEST(Graph, NamesAreUniqueAndTheirElementsSumToTheCount) {
  for (const auto& file : files()) {
    if (file.find("Kimi") != std::string::npos) continue;  // 70,000 names; same family as DeepSeek-V3
    SCOPED_TRACE(file);
    const Model m = load_model(file);
    std::set<std::string> names;
    std::int64_t total = 0;
    for (const NamedParameter& p : all_parameters(m)) {
      EXPECT_TRUE(names.insert(p.name).second) << p.name;
      std::int64_t n = 1;
      for (auto d : p.shape) n *= d;
      total += n;
      EXPECT_EQ(p.name.find("{}"), std::string::npos);
      EXPECT_GE(p.unit, -1);
      EXPECT_LE(p.unit, m.block_count());
    }
    EXPECT_EQ(total, m.parameters());
    if (!m.tied_embeddings && m.vocabulary > 0) {
      EXPECT_TRUE(names.count(m.head_parameter)) << m.head_parameter;
    }
    EXPECT_TRUE(names.count(m.embedding_parameter)) << m.embedding_parameter;
  }
}

std::vector<std::int64_t> shape_of(const Model& m, const std::string& name) {
  for (const NamedParameter& p : all_parameters(m))
    if (p.name == name) return p.shape;
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

using Shape = std::vector<std::int64_t>;

TEST(Graph, LlamaHasTheNamesOfItsSafetensors) {
  const Model m = load_model(kTruth + "configs/meta-llama__Meta-Llama-3-8B.json");
  EXPECT_EQ(shape_of(m, "model.embed_tokens.weight"), (Shape{128256, 4096}));
  EXPECT_EQ(shape_of(m, "model.layers.31.self_attn.q_proj.weight"), (Shape{4096, 4096}));
  EXPECT_EQ(shape_of(m, "model.layers.0.self_attn.k_proj.weight"), (Shape{1024, 4096}));
  EXPECT_EQ(shape_of(m, "model.layers.0.mlp.gate_proj.weight"), (Shape{14336, 4096}));
  EXPECT_EQ(shape_of(m, "model.layers.0.mlp.down_proj.weight"), (Shape{4096, 14336}));
  EXPECT_EQ(shape_of(m, "model.layers.0.post_attention_layernorm.weight"), (Shape{4096}));
  EXPECT_EQ(shape_of(m, "model.norm.weight"), (Shape{4096}));
  EXPECT_EQ(shape_of(m, "lm_head.weight"), (Shape{128256, 4096}));
  EXPECT_EQ(all_parameters(m).size(), 3u + 32 * 9);
}

TEST(Graph, Gpt2StoresItsLinearsInputFirst) {
  const Model m = load_model(kTruth + "configs/openai-community__gpt2.json");
  EXPECT_EQ(shape_of(m, "transformer.h.11.attn.c_attn.weight"), (Shape{768, 2304}));
  EXPECT_EQ(shape_of(m, "transformer.h.0.mlp.c_fc.weight"), (Shape{768, 3072}));
  EXPECT_EQ(shape_of(m, "transformer.h.0.mlp.c_proj.weight"), (Shape{3072, 768}));
  EXPECT_EQ(shape_of(m, "transformer.h.0.mlp.c_proj.bias"), (Shape{768}));
  EXPECT_EQ(shape_of(m, "transformer.wpe.weight"), (Shape{1024, 768}));
  EXPECT_EQ(all_parameters(m).size(), 2u + 2 + 12 * 12);  // the tied output projection is the token table
  int transposed = 0;
  for (const Op& op : m.blocks.front().ops) transposed += op.transposed_weight;
  EXPECT_EQ(transposed, 4);
}

TEST(Graph, FurtherFamiliesHaveTheNamesOfTheirFiles) {
  const auto model = [](const char* file) { return load_model(kTruth + "configs/" + file); };
  EXPECT_EQ(shape_of(model("Qwen__Qwen2.5-0.5B-Instruct.json"), "model.layers.0.self_attn.q_proj.bias"), (Shape{896}));
  EXPECT_EQ(shape_of(model("Qwen__Qwen3-0.6B.json"), "model.layers.27.self_attn.k_norm.weight"), (Shape{128}));
  EXPECT_EQ(shape_of(model("mistralai__Mixtral-8x7B-v0.1.json"), "model.layers.0.block_sparse_moe.experts.7.w2.weight"), (Shape{4096, 14336}));
  EXPECT_EQ(shape_of(model("deepseek-ai__DeepSeek-V3.json"), "model.layers.3.mlp.gate.e_score_correction_bias"), (Shape{256}));
  EXPECT_EQ(shape_of(model("deepseek-ai__DeepSeek-V3.json"), "model.layers.2.mlp.gate_proj.weight"), (Shape{18432, 7168}));
  EXPECT_EQ(shape_of(model("deepseek-ai__DeepSeek-V3.json"), "model.layers.60.self_attn.kv_a_proj_with_mqa.weight"), (Shape{576, 7168}));
  EXPECT_EQ(shape_of(model("openai__gpt-oss-20b.json"), "model.layers.0.self_attn.sinks"), (Shape{64}));
  EXPECT_EQ(shape_of(model("tiiuae__falcon-40b.json"), "transformer.h.0.self_attention.query_key_value.weight"), (Shape{9216, 8192}));
  EXPECT_EQ(shape_of(model("THUDM__chatglm2-6b.json"), "transformer.encoder.layers.0.mlp.dense_h_to_4h.weight"), (Shape{27392, 4096}));
  EXPECT_EQ(shape_of(model("EleutherAI__gpt-j-6b.json"), "lm_head.bias"), (Shape{50400}));
  EXPECT_EQ(shape_of(model("google-t5__t5-small.json"), "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"), (Shape{32, 8}));
  EXPECT_EQ(shape_of(model("google__vit-base-patch16-224.json"), "vit.embeddings.patch_embeddings.projection.weight"), (Shape{768, 3, 16, 16}));
}

TEST(Graph, WindowsAndExpertsStandInTheLayersThatHaveThem) {
  const Model oss = load_model(kTruth + "configs/openai__gpt-oss-20b.json");
  EXPECT_EQ(oss.blocks.size(), 2u);
  EXPECT_EQ(oss.body.size(), 24u);
  const Model scout = load_model(kTruth + "configs/meta-llama__Llama-4-Scout-17B-16E-Instruct.json");
  EXPECT_EQ(scout.blocks.size(), 2u);  // rotated with chunks, and not
  EXPECT_EQ(scout.body.size(), 24u);
  const Model v3 = load_model(kTruth + "configs/deepseek-ai__DeepSeek-V3.json");
  ASSERT_EQ(v3.body.size(), 2u);
  EXPECT_EQ(v3.body[0].count, 3);
  EXPECT_EQ(v3.body[1].count, 58);
  const Model hybrid = load_model(kTruth + "configs/nvidia__Nemotron-H-56B-Base-8K.json");
  EXPECT_EQ(hybrid.blocks.size(), 3u);
}

TEST(Graph, FusedProjectionsCarryTheNamesThatUsersKnow) {
  for (const char* file : {"openai-community__gpt2.json", "tiiuae__falcon-40b.json", "mosaicml__mpt-7b.json", "THUDM__chatglm3-6b.json", "microsoft__phi-4.json",
                           "databricks__dbrx-base.json", "baichuan-inc__Baichuan2-7B-Chat.json", "Qwen__Qwen-7B-Chat.json"}) {
    const Model m = load_model(kTruth + "configs/" + file);
    bool found = false;
    for (const Op& op : m.blocks.front().ops)
      found |= std::find(op.fused_targets.begin(), op.fused_targets.end(), "q_proj") != op.fused_targets.end();
    EXPECT_TRUE(found) << file;
  }
}

}  // namespace
}  // namespace shardfit::model
