// Mistral 7B, Nemo, Ministral (transformers/models/mistral/modeling_mistral.py): Llama with a sliding window in its first release.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_mistral(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.shape.window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  m.attention = attention.shape;
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};

  token_embedding(m, {});
  repeat(m,
         pre_norm_layer(
             "MistralDecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
             [&](Builder& b, TensorId x) { return self_attention(b, x, attention); }, [&](Builder& b, TensorId x) { return gated_mlp(b, x, mlp); }),
         d.layers);
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
