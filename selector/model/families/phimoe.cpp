// Phi-3.5-MoE, Phi-mini-MoE (transformers/models/phimoe/modeling_phimoe.py): LayerNorm, biases in attention and head, Mixtral experts.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_phimoe(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.shape.window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
  m.attention = attention.shape;
  Moe moe{.module = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  moe.shape = read_moe(c, c.size_or({"num_local_experts"}, 16, 1, kMostExperts), d.intermediate);

  token_embedding(m, {});
  repeat(m,
         pre_norm_layer(
             "PhimoeDecoderLayer", "model.layers.{}", d.hidden, NormKind::kLayer,
             [&](Builder& b, TensorId x) { return self_attention(b, x, attention); }, [&](Builder& b, TensorId x) { return mixture(b, x, moe); }),
         d.layers);
  language_head(m, {.kind = NormKind::kLayer, .bias = c.flag_or({"lm_head_bias"}, false)});
  return m;
}

}  // namespace shardfit::model
