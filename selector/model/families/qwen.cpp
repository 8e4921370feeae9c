// Qwen, first generation (modeling_qwen.py of its repository). intermediate_size counts both halves of the gated MLP.
#include <algorithm>

#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_qwen(const Config& c) {
  Dims d = read_dims(c, false);
  d.head_dim = c.size_or({"kv_channels"}, d.head_dim, 1);
  d.intermediate = std::max<std::int64_t>(1, d.intermediate / 2);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d), {.module = "attn"}};
  const std::int64_t width = d.heads * d.head_dim;
  const bool bias = !c.flag_or({"no_bias"}, true);

  token_embedding(m, {.table = "transformer.wte", .dropout = "transformer.drop", .dropout_p = c.probability_or({"emb_dropout_prob"})});
  repeat(m,
         pre_norm_layer(
             "QWenBlock", "transformer.h.{}", d.hidden, NormKind::kRms,
             [&](Builder& b, TensorId x) {
               const TensorId qkv = b.linear("attn.c_attn", x, 3 * width, true);
               b.fused_targets({"q_proj", "k_proj", "v_proj"});
               const auto parts = b.split("attn.split", qkv, {width, width, width});
               return b.linear("attn.c_proj", attend(b, parts[0], parts[1], parts[2], attention), d.hidden, bias);
             },
             [&](Builder& b, TensorId x) {
               return gated_mlp(b, x, {.gate = "w2", .up = "w1", .down = "c_proj", .intermediate = d.intermediate, .bias = bias});
             },
             "ln_1", "ln_2"),
         d.layers);
  language_head(m, {.norm = "transformer.ln_f"});
  return m;
}

}  // namespace shardfit::model
