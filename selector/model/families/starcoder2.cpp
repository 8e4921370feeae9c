// StarCoder 2 (transformers/models/starcoder2/modeling_starcoder2.py): LayerNorm, plain MLP, biases, few key-value heads.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_starcoder2(const Config& c) {
  const Dims d = read_dims(c, true);
  Model m = begin(c, d);
  const bool bias = c.flag_or({"use_bias"}, true);
  const double drop = c.probability_or({"residual_dropout"});
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = attention.o_bias = bias;
  attention.shape.window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  m.attention = attention.shape;
  const Mlp mlp{.up = "c_fc", .down = "c_proj", .intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "gelu_pytorch_tanh"), .bias = bias};

  token_embedding(m, {.dropout = "embedding_dropout", .dropout_p = c.probability_or({"embedding_dropout"})});
  repeat(m,
         pre_norm_layer(
             "Starcoder2DecoderLayer", "model.layers.{}", d.hidden, NormKind::kLayer,
             [&](Builder& b, TensorId x) { return b.dropout("self_attn.resid_dropout", self_attention(b, x, attention), drop); },
             [&](Builder& b, TensorId x) { return b.dropout("mlp.resid_dropout", plain_mlp(b, x, mlp), drop); }),
         d.layers);
  language_head(m, {.kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
