// Mixtral 8x7B and 8x22B (transformers/models/mixtral/modeling_mixtral.py): Mistral with routed experts for an MLP.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_mixtral(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.shape.window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  m.attention = attention.shape;
  Moe moe{.module = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  moe.shape = read_moe(c, c.size_or({"num_local_experts"}, 8, 1, kMostExperts), d.intermediate);

  token_embedding(m, {});
  repeat(m,
         pre_norm_layer(
             "MixtralDecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
             [&](Builder& b, TensorId x) { return self_attention(b, x, attention); }, [&](Builder& b, TensorId x) { return mixture(b, x, moe); }),
         d.layers);
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
