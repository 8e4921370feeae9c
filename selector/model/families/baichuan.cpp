// Baichuan 1 and 2 (modeling_baichuan.py of its repository): Llama with q, k, v in W_pack; 13B has ALiBi and no rotary embedding.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_baichuan(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.shape.alibi = d.hidden >= 5120;
  attention.rotary = attention.shape.alibi ? 0 : 1;
  m.attention = attention.shape;
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};

  token_embedding(m, {});
  repeat(m,
         pre_norm_layer(
             attention.shape.alibi ? "BaichuanLayer" : "DecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
             [&](Builder& b, TensorId x) {
               const auto qkv = fused_qkv(b, "self_attn.W_pack", x, attention.shape, false);
               return b.linear("self_attn.o_proj", attend(b, qkv[0], qkv[1], qkv[2], attention), d.hidden);
             },
             [&](Builder& b, TensorId x) { return gated_mlp(b, x, mlp); }),
         d.layers);
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
