// OLMo 2 and 3 (transformers/models/olmo2 and olmo3): norms after the sub-layers, q and k normalised over their whole width;
// OLMo 3 has windows in three layers of four.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_olmo2(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const bool third = c.word_or({"model_type"}, "") == "olmo3" || c.has("layer_types");
  const auto window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};

  token_embedding(m, {});
  layers_by_kind(m, sliding_kinds(c, d.layers, third ? 4 : 0), [&](int sliding) {
    SelfAttention attention{attention_shape(d)};
    attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
    attention.qk_norm = QkNorm::kWidth;
    if (sliding) attention.shape.window = window;
    Builder b(third ? "Olmo3DecoderLayer" : "Olmo2DecoderLayer", "model.layers.{}", d.hidden);
    TensorId x = b.input();
    x = b.residual(x, b.rms_norm("post_attention_layernorm", self_attention(b, x, attention)));
    x = b.residual(x, b.rms_norm("post_feedforward_layernorm", gated_mlp(b, x, mlp)));
    return b.finish(x);
  });
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
