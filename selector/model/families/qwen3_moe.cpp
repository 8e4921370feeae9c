// Qwen 3 MoE (transformers/models/qwen3_moe/modeling_qwen3_moe.py): Qwen 3 attention, routed experts, none shared.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_qwen3_moe(const Config& c) {
  const Dims d = read_dims(c, false, 6144);
  Model m = begin(c, d);
  const Activation act = c.activation({"hidden_act"}, "silu");
  const Moe moe{.shape = read_moe(c, c.size_or({"num_experts"}, 128, 1, kMostExperts), c.size({"moe_intermediate_size"}))};
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
  attention.qk_norm = QkNorm::kHead;

  token_embedding(m, {});
  layers_by_kind(m, sparse_kinds(c, d.layers), [&](int sparse) {
    return pre_norm_layer(
        "Qwen3MoeDecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
        [&](Builder& b, TensorId x) { return self_attention(b, x, attention); },
        [&](Builder& b, TensorId x) { return sparse ? mixture(b, x, moe) : gated_mlp(b, x, {.intermediate = d.intermediate, .activation = act}); });
  });
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
