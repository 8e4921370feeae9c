// Phi 1, 1.5 and 2 (transformers/models/phi/modeling_phi.py): one norm, attention and MLP in parallel, biases everywhere.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_phi(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const double drop = c.probability_or({"resid_pdrop"});
  SelfAttention attention{attention_shape(d), {.o = "dense", .q_norm = "q_layernorm", .k_norm = "k_layernorm"}};
  attention.qkv_bias = attention.o_bias = true;
  attention.rotary = c.number_or({"partial_rotary_factor"}, 0.5, 0, 1);
  if (c.flag_or({"qk_layernorm"}, false)) attention.qk_norm = QkNorm::kHead;
  attention.qk_norm_kind = NormKind::kLayer;
  const Mlp mlp{.up = "fc1", .down = "fc2", .intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "gelu_new"), .bias = true};

  token_embedding(m, {.dropout = "model.embed_dropout", .dropout_p = c.probability_or({"embd_pdrop"})});

  Builder b("PhiDecoderLayer", "model.layers.{}", d.hidden);
  const TensorId x = b.input(), n = b.layer_norm("input_layernorm", x);
  const TensorId attended = b.dropout("resid_dropout", self_attention(b, n, attention), drop);
  const TensorId fed = b.dropout("resid_dropout", plain_mlp(b, n, mlp), drop);
  repeat(m, b.finish(b.residual(b.add("add", attended, fed), x)), d.layers);

  language_head(m, {.norm = "model.final_layernorm", .kind = NormKind::kLayer, .bias = true});
  return m;
}

}  // namespace shardfit::model
