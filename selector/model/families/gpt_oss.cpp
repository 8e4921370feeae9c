// gpt-oss (transformers/models/gpt_oss/modeling_gpt_oss.py): attention sinks, every other layer with a window, experts in
// stacked weights with biases.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gpt_oss(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const bool bias = c.flag_or({"attention_bias"}, true);
  MoeShape moe = read_moe(c, c.size_or({"num_local_experts", "num_experts"}, 128, 1, kMostExperts), d.intermediate);
  moe.bias = true;
  moe.activation = Activation::kSwigluOai;
  const std::int64_t window = c.size_or({"sliding_window"}, 128, 1, kMostPositions), e = moe.experts, h = d.hidden, f = d.intermediate;

  token_embedding(m, {});
  layers_by_kind(m, sliding_kinds(c, d.layers, 2), [&](int sliding) {
    SelfAttention attention{attention_shape(d)};
    attention.shape.sinks = true;
    if (sliding) attention.shape.window = window;
    attention.qkv_bias = attention.o_bias = bias;
    attention.extra = {"self_attn.sinks"};
    return pre_norm_layer(
        "GptOssDecoderLayer", "model.layers.{}", h, NormKind::kRms, [&](Builder& b, TensorId x) { return self_attention(b, x, attention); },
        [&](Builder& b, TensorId x) {
          const TensorId weights = b.router("mlp.router", x, moe,
                                            {b.parameter("mlp.router.weight", "mlp.router", {e, h}, Parameter::Kind::kRouter),
                                             b.parameter("mlp.router.bias", "mlp.router", {e}, Parameter::Kind::kBias)});
          return b.experts("mlp.experts", x, weights, moe,
                           {b.parameter("mlp.experts.gate_up_proj", "mlp.experts", {e, h, 2 * f}, Parameter::Kind::kExpert),
                            b.parameter("mlp.experts.gate_up_proj_bias", "mlp.experts", {e, 2 * f}, Parameter::Kind::kBias),
                            b.parameter("mlp.experts.down_proj", "mlp.experts", {e, f, h}, Parameter::Kind::kExpert),
                            b.parameter("mlp.experts.down_proj_bias", "mlp.experts", {e, h}, Parameter::Kind::kBias)});
        });
  });
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
