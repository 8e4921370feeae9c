// DeepSeek MoE, V2, V3 and Kimi K2 (transformers/models/deepseek_v2 and deepseek_v3; modeling_deepseek.py of the repositories):
// latent attention where kv_lora_rank is given, dense MLPs first, then routed and shared experts. The multi-token-prediction module
// of V3 is not part of the Hugging Face model and not counted.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_deepseek(const Config& c) {
  const bool latent = c.has("kv_lora_rank");
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const Activation act = c.activation({"hidden_act"}, "silu");
  Mla mla;
  if (latent) {
    mla = read_mla(c, d);
    m.attention = latent_shape(mla);
  }
  SelfAttention plain{attention_shape(d)};
  plain.qkv_bias = plain.o_bias = c.flag_or({"attention_bias"}, false);

  if (const auto next = c.size_or({"num_nextn_predict_layers"}, 0, 0, 64); next > 0) m.facts["num_nextn_predict_layers"] = static_cast<double>(next);

  Moe moe;
  std::vector<int> kinds(static_cast<std::size_t>(d.layers), 0);
  std::int64_t shared = 0;
  if (const std::int64_t experts = c.size_or({"n_routed_experts"}, 0, 0, kMostExperts); experts > 0) {
    moe.shape = read_moe(c, experts, c.size({"moe_intermediate_size"}));
    moe.correction_bias = c.word_or({"topk_method"}, "") == "noaux_tc";
    shared = c.size_or({"n_shared_experts"}, 0, 0, kMostExperts) * moe.shape.intermediate;
    moe.shape.shared_intermediate = shared;
    const std::int64_t dense = c.size_or({"first_k_dense_replace"}, 0), every = c.size_or({"moe_layer_freq"}, 1, 1);
    for (std::int64_t i = 0; i < d.layers; ++i) kinds[static_cast<std::size_t>(i)] = i >= dense && i % every == 0;
  }
  const std::string name = latent ? (moe.correction_bias ? "DeepseekV3DecoderLayer" : "DeepseekV2DecoderLayer") : "DeepseekDecoderLayer";

  token_embedding(m, {});
  layers_by_kind(m, kinds, [&](int sparse) {
    return pre_norm_layer(
        name, "model.layers.{}", d.hidden, NormKind::kRms,
        [&](Builder& b, TensorId x) { return latent ? latent_attention(b, x, mla) : self_attention(b, x, plain); },
        [&](Builder& b, TensorId x) {
          if (!sparse) return gated_mlp(b, x, {.intermediate = d.intermediate, .activation = act});
          const TensorId routed = mixture(b, x, moe);
          if (shared == 0) return routed;
          return b.add("mlp.add", routed, gated_mlp(b, x, {.module = "mlp.shared_experts", .intermediate = shared, .activation = act}));
        });
  });
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
