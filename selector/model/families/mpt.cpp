// MPT: the Hugging Face port (transformers/models/mpt/modeling_mpt.py, never a bias) and llm-foundry, whose "no_bias" and
// "learned_pos_emb" keys count (llmfoundry/models/mpt/modeling_mpt.py).
#include <algorithm>

#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_mpt(const Config& c) {
  const std::int64_t hidden = c.size({"d_model"});
  const double ratio = c.number_or({"expansion_ratio"}, 4, 0.01, 1024);
  Dims d = read_dims(c, true, std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(hidden) * ratio)));
  const auto own = c.section("attn_config");
  const auto words = c.words("architectures");
  const bool foundry = !words.empty() && words.front().starts_with("MPT");
  const bool bias = foundry && !c.flag_or({"no_bias"}, false);
  bool qk_norm = false;
  double resid = 0;
  AttentionShape shape = attention_shape(d);
  shape.alibi = !foundry;
  if (own) {
    shape.alibi = own->flag_or({"alibi"}, !foundry);
    shape.dropout = own->probability_or({"attn_pdrop"});
    qk_norm = own->flag_or({"qk_ln"}, false);
    if (own->word_or({"attn_type"}, "") == "multiquery_attention") shape.kv_heads = 1;
    shape.kv_heads = own->size_or({"kv_n_heads"}, shape.kv_heads, 1, kMostHeads);
    check_groups(*own, "kv_n_heads", shape.heads, shape.kv_heads);
    if (const auto window = own->optional_size({"sliding_window_size"}, -1, kMostPositions); window && *window > 0) shape.window = window;
  }
  resid = c.probability_or({"resid_pdrop"});
  Model m = begin(c, d);
  m.attention = shape;
  m.facts["use_cache"] = c.flag_or({"use_cache"}, false);   // configuration_mpt.py, unlike other families
  // Norms in bf16 under autocast: a quarter of the traffic.
  m.facts["low_precision_layernorm"] = c.word_or({"norm_type"}, "low_precision_layernorm") == "low_precision_layernorm";
  SelfAttention attention{shape, {.module = "attn", .q_norm = "q_ln", .k_norm = "k_ln"}};
  attention.rotary = own && own->flag_or({"rope"}, false) ? 1 : 0;
  attention.qk_norm = qk_norm ? QkNorm::kWidth : QkNorm::kNone;
  attention.qk_norm_kind = bias ? NormKind::kLayer : NormKind::kLayerNoBias;
  const NormKind norm_kind = bias ? NormKind::kLayer : NormKind::kLayerNoBias;
  const bool positions = foundry && c.flag_or({"learned_pos_emb"}, true) && !shape.alibi && attention.rotary == 0;

  Embedding embedding{.table = "transformer.wte", .dropout = "transformer.emb_drop", .dropout_p = c.probability_or({"emb_pdrop"})};
  if (positions) {
    embedding.positions = "transformer.wpe";
    embedding.position_rows = d.max_positions;
  }
  token_embedding(m, embedding);
  repeat(m,
         pre_norm_layer(
             foundry ? "MPTBlock" : "MptBlock", "transformer.blocks.{}", d.hidden, norm_kind,
             [&](Builder& b, TensorId x) {
               const auto qkv = fused_qkv(b, "attn.Wqkv", x, shape, bias);
               return b.dropout("resid_attn_dropout", b.linear("attn.out_proj", attend(b, qkv[0], qkv[1], qkv[2], attention), d.hidden, bias), resid);
             },
             [&](Builder& b, TensorId x) {
               const Mlp mlp{.module = "ffn", .intermediate = d.intermediate, .activation = Activation::kGelu, .bias = bias};
               return b.dropout("resid_ffn_dropout", plain_mlp(b, x, mlp), resid);
             },
             "norm_1", "norm_2"),
         d.layers);
  language_head(m, {.norm = "transformer.norm_f", .kind = norm_kind});
  return m;
}

}  // namespace shardfit::model
