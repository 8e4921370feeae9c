// Nemotron 3, 4, Minitron (transformers/models/nemotron/modeling_nemotron.py): LayerNorm with weight + 1, squared ReLU.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_nemotron(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
  attention.rotary = c.number_or({"partial_rotary_factor", "rope_percent"}, 0.5, 0, 1);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "relu2"), .bias = c.flag_or({"mlp_bias"}, false)};

  token_embedding(m, {});
  repeat(m,
         pre_norm_layer(
             "NemotronDecoderLayer", "model.layers.{}", d.hidden, NormKind::kLayer,
             [&](Builder& b, TensorId x) { return self_attention(b, x, attention); }, [&](Builder& b, TensorId x) { return plain_mlp(b, x, mlp); }),
         d.layers);
  language_head(m, {.kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
