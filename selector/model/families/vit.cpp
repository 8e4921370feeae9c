// Vision Transformer (transformers/models/vit/modeling_vit.py), with its classifier.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_vit(const Config& c) {
  const VisionDims v = read_vision(c, 224, 16);
  Model m = begin_vision(c, v);
  const double drop = c.probability_or({"hidden_dropout_prob"});
  const bool bias = c.flag_or({"qkv_bias"}, true);

  vision_embedding(m, v, "vit.embeddings", false, drop);
  repeat(m,
         pre_norm_layer(
             "ViTLayer", "vit.encoder.layer.{}", v.hidden, NormKind::kLayer,
             [&](Builder& b, TensorId x) {
               const std::int64_t width = v.hidden;
               const TensorId q = b.linear("attention.attention.query", x, width, bias), k = b.linear("attention.attention.key", x, width, bias);
               const TensorId y = b.attention("attention.attention", q, k, b.linear("attention.attention.value", x, width, bias), m.attention);
               return b.dropout("attention.output.dropout", b.linear("attention.output.dense", y, width, true), drop);
             },
             [&](Builder& b, TensorId x) {
               const Mlp mlp{.module = "", .up = "intermediate.dense", .down = "output.dense", .intermediate = m.intermediate, .activation = v.activation, .bias = true};
               return b.dropout("output.dropout", plain_mlp(b, x, mlp), drop);
             },
             "layernorm_before", "layernorm_after"),
         v.layers);

  Builder b("", "", v.hidden);
  const TensorId n = b.layer_norm("vit.layernorm", b.input());
  m.head = b.finish(b.linear("classifier", b.first_token(n), v.labels, true));
  m.head_parameter = "classifier.weight";
  return m;
}

}  // namespace shardfit::model
