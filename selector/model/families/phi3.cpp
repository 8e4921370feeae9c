// Phi 3, 3.5 and 4 (transformers/models/phi3/modeling_phi3.py): Llama with fused q, k, v and fused gate and up.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_phi3(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const double drop = c.probability_or({"resid_pdrop"});
  SelfAttention attention{attention_shape(d)};
  attention.shape.window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  attention.rotary = c.number_or({"partial_rotary_factor"}, 1, 0, 1);
  m.attention = attention.shape;
  const Mlp mlp{.up = "gate_up_proj", .intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};

  token_embedding(m, {});
  repeat(m,
         pre_norm_layer(
             "Phi3DecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
             [&](Builder& b, TensorId x) {
               const auto qkv = fused_qkv(b, "self_attn.qkv_proj", x, attention.shape, false);
               return b.dropout("resid_attn_dropout", b.linear("self_attn.o_proj", attend(b, qkv[0], qkv[1], qkv[2], attention), d.hidden), drop);
             },
             [&](Builder& b, TensorId x) { return b.dropout("resid_mlp_dropout", fused_gated_mlp(b, x, mlp), drop); }),
         d.layers);
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
