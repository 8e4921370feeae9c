// Qwen 1.5 and 2 MoE (transformers/models/qwen2_moe/modeling_qwen2_moe.py): routed experts beside one gated shared expert.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_qwen2_moe(const Config& c) {
  const Dims d = read_dims(c, false, 5632);
  Model m = begin(c, d);
  const Activation act = c.activation({"hidden_act"}, "silu");
  Moe moe{.shape = read_moe(c, c.size_or({"num_experts"}, 60, 1, kMostExperts), c.size({"moe_intermediate_size"}))};
  moe.shape.shared_intermediate = c.size_or({"shared_expert_intermediate_size"}, 5632, 0);

  token_embedding(m, {});
  layers_by_kind(m, sparse_kinds(c, d.layers), [&](int sparse) {
    SelfAttention attention{attention_shape(d)};
    attention.qkv_bias = c.flag_or({"qkv_bias"}, true);
    return pre_norm_layer(
        "Qwen2MoeDecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
        [&](Builder& b, TensorId x) { return self_attention(b, x, attention); },
        [&](Builder& b, TensorId x) {
          if (!sparse) return gated_mlp(b, x, {.intermediate = d.intermediate, .activation = act});
          const TensorId routed = mixture(b, x, moe);
          if (moe.shape.shared_intermediate == 0) return routed;
          const TensorId shared = gated_mlp(b, x, {.module = "mlp.shared_expert", .intermediate = moe.shape.shared_intermediate, .activation = act});
          const TensorId gate = b.activation("mlp.sigmoid", b.linear("mlp.shared_expert_gate", x, 1), Activation::kTanh);
          return b.add("mlp.add", routed, b.multiply("mlp.gated", shared, gate));
        });
  });
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
