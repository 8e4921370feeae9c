// DINOv2 (transformers/models/dinov2/modeling_dinov2.py): layer scale, SwiGLU in the giant model, classifier over the class token
// beside the mean of the patches.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_dinov2(const Config& c) {
  VisionDims v = read_vision(c, 224, 16);
  const std::int64_t ratio = c.size_or({"mlp_ratio"}, 4, 1, 1024);
  const bool gated = c.flag_or({"use_swiglu_ffn"}, false);
  v.intermediate = v.hidden * ratio;
  if (gated) v.intermediate = (v.intermediate * 2 / 3 + 7) / 8 * 8;
  Model m = begin_vision(c, v);
  const double drop = c.probability_or({"hidden_dropout_prob"});
  const bool bias = c.flag_or({"qkv_bias"}, true);

  vision_embedding(m, v, "dinov2.embeddings", true, drop);

  Builder b("Dinov2Layer", "dinov2.encoder.layer.{}", v.hidden);
  TensorId x = b.input();
  const auto layer_scale = [&](const std::string& module, TensorId y) {
    return b.scale(module, y, {b.parameter(module + ".lambda1", module, {v.hidden}, Parameter::Kind::kOther)});
  };
  const TensorId n = b.layer_norm("norm1", x);
  const TensorId q = b.linear("attention.attention.query", n, v.hidden, bias), k = b.linear("attention.attention.key", n, v.hidden, bias);
  TensorId y = b.attention("attention.attention", q, k, b.linear("attention.attention.value", n, v.hidden, bias), m.attention);
  y = b.dropout("attention.output.dropout", b.linear("attention.output.dense", y, v.hidden, true), drop);
  x = b.residual(x, layer_scale("layer_scale1", y));
  const TensorId n2 = b.layer_norm("norm2", x);
  if (gated) y = fused_gated_mlp(b, n2, {.up = "weights_in", .down = "weights_out", .intermediate = v.intermediate, .activation = Activation::kSilu, .bias = true});
  else y = plain_mlp(b, n2, {.up = "fc1", .down = "fc2", .intermediate = v.intermediate, .activation = v.activation, .bias = true});
  x = b.residual(x, layer_scale("layer_scale2", y));
  repeat(m, b.finish(x), v.layers);

  Builder h("", "", v.hidden);
  const TensorId final = h.layer_norm("dinov2.layernorm", h.input());
  const TensorId both = h.concat("cls_and_mean", {h.first_token(final), h.first_token(final)});
  m.head = h.finish(h.linear("classifier", both, v.labels, true));
  m.head_parameter = "classifier.weight";
  return m;
}

}  // namespace shardfit::model
