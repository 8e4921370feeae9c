// DBRX (transformers/models/dbrx/modeling_dbrx.py): nested keys, LayerNorm without biases, experts stacked in three matrices.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_dbrx(const Config& c) {
  const auto attn = c.section("attn_config"), ffn = c.section("ffn_config");
  for (const char* key : {"attn_config", "ffn_config"})
    if (!c.has(key)) throw Error("missing_key", c.at(key), std::string("\"") + key + "\" is missing", "take the model's original config.json");
  Dims d = read_dims(c, false, ffn->size_or({"ffn_hidden_size"}, 3584, 1));
  d.kv_heads = attn->size_or({"kv_n_heads"}, 1, 1, kMostHeads);
  check_groups(*attn, "kv_n_heads", d.heads, d.kv_heads);
  d.attention_dropout = attn->probability_or({"attn_pdrop"});
  Model m = begin(c, d);
  m.rope_theta = attn->number_or({"rope_theta"}, 10000, 1, 1e18);
  const double drop = c.probability_or({"resid_pdrop"});
  MoeShape moe;
  moe.experts = ffn->size_or({"moe_num_experts"}, 4, 1, kMostExperts);
  moe.top_k = ffn->size_or({"moe_top_k"}, 1, 1, moe.experts);
  moe.intermediate = d.intermediate;
  if (const auto act = ffn->section("ffn_act_fn")) moe.activation = act->activation({"name"}, "silu");
  const SelfAttention attention{m.attention, {.module = "norm_attn_norm.attn"}};
  const std::int64_t e = moe.experts, h = d.hidden, f = d.intermediate;

  token_embedding(m, {.table = "transformer.wte", .dropout = "transformer.emb_drop", .dropout_p = c.probability_or({"emb_pdrop"})});
  repeat(m,
         pre_norm_layer(
             "DbrxBlock", "transformer.blocks.{}", h, NormKind::kLayerNoBias,
             [&](Builder& b, TensorId x) {
               const auto qkv = fused_qkv(b, "norm_attn_norm.attn.Wqkv", x, m.attention, false);
               const TensorId y = b.linear("norm_attn_norm.attn.out_proj", attend(b, qkv[0], qkv[1], qkv[2], attention), h);
               return b.dropout("norm_attn_norm.resid_dropout", y, drop);
             },
             [&](Builder& b, TensorId x) {
               const std::string router = "ffn.router.layer", experts = "ffn.experts.mlp";
               const TensorId weights = b.router(router, x, moe, {b.parameter(router + ".weight", router, {e, h}, Parameter::Kind::kRouter)});
               const TensorId y = b.experts(experts, x, weights, moe,
                                            {b.parameter(experts + ".w1", experts, {e * f, h}, Parameter::Kind::kExpert),
                                             b.parameter(experts + ".v1", experts, {e * f, h}, Parameter::Kind::kExpert),
                                             b.parameter(experts + ".w2", experts, {e * f, h}, Parameter::Kind::kExpert)});
               return b.dropout("resid_dropout", y, drop);
             },
             "norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
         d.layers);
  language_head(m, {.norm = "transformer.norm_f", .kind = NormKind::kLayerNoBias});
  return m;
}

}  // namespace shardfit::model
