// Gemma 1 (transformers/models/gemma/modeling_gemma.py): embeddings times the root of the width, heads of 256.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gemma(const Config& c) {
  Dims d = read_dims(c, true);
  d.head_dim = c.size_or({"head_dim"}, 256, 1);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_activation", "hidden_act"}, "gelu_pytorch_tanh")};

  token_embedding(m, {.scaled = true});
  repeat(m,
         pre_norm_layer(
             "GemmaDecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
             [&](Builder& b, TensorId x) { return self_attention(b, x, attention); }, [&](Builder& b, TensorId x) { return gated_mlp(b, x, mlp); }),
         d.layers);
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
