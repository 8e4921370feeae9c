// GLM-4 as transformers has it (models/glm and models/glm4): fused gate and up, half of each head rotated; GLM-4-0414 adds norms
// after the sub-layers.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_glm(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const bool glm4 = c.word_or({"model_type"}, "") == "glm4";
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = c.flag_or({"attention_bias"}, false);
  attention.rotary = c.number_or({"partial_rotary_factor"}, 0.5, 0, 1);
  const Mlp mlp{.up = "gate_up_proj", .intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};

  token_embedding(m, {});
  Builder b(glm4 ? "Glm4DecoderLayer" : "GlmDecoderLayer", "model.layers.{}", d.hidden);
  TensorId x = b.input();
  TensorId y = self_attention(b, b.rms_norm("input_layernorm", x), attention);
  if (glm4) y = b.rms_norm("post_self_attn_layernorm", y);
  x = b.residual(x, y);
  y = fused_gated_mlp(b, b.rms_norm("post_attention_layernorm", x), mlp);
  if (glm4) y = b.rms_norm("post_mlp_layernorm", y);
  repeat(m, b.finish(b.residual(x, y)), d.layers);
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
