// Qwen 1.5, 2 and 2.5 (transformers/models/qwen2/modeling_qwen2.py): Llama with biases on q, k and v that no key announces.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_qwen2(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};
  std::vector<int> kinds = sliding_kinds(c, d.layers, 0);
  if (c.flag_or({"use_sliding_window"}, false) && !c.has("layer_types")) {
    const auto full = static_cast<std::size_t>(c.size_or({"max_window_layers"}, 28));
    for (std::size_t i = full; i < kinds.size(); ++i) kinds[i] = 1;
  }
  const auto window = c.optional_size({"sliding_window"}, 1, kMostPositions);

  token_embedding(m, {});
  layers_by_kind(m, kinds, [&](int sliding) {
    SelfAttention attention{attention_shape(d)};
    attention.qkv_bias = true;
    if (sliding) attention.shape.window = window;
    return pre_norm_layer(
        "Qwen2DecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
        [&](Builder& b, TensorId x) { return self_attention(b, x, attention); }, [&](Builder& b, TensorId x) { return gated_mlp(b, x, mlp); });
  });
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
