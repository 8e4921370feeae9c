// Llama 4, text (transformers/models/llama4/modeling_llama4.py): one routed expert beside a shared one, rotary embedding and chunked
// attention in three layers of four, q and k normalised without weights after rotation.
#include <algorithm>

#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_llama4(const Config& c) {
  Dims d = read_dims(c, false);
  d.head_dim = c.size_or({"head_dim"}, d.head_dim, 1);
  Model m = begin(c, d);
  const Activation act = c.activation({"hidden_act"}, "silu");
  const std::string outer = c.has("shardfit_nested") ? "language_model." : "";
  MoeShape moe = read_moe(c, c.size_or({"num_local_experts"}, 16, 1, kMostExperts), d.intermediate);
  moe.shared_intermediate = d.intermediate;
  const std::int64_t dense_width = c.size_or({"intermediate_size_mlp"}, 16384, 1), step = c.size_or({"interleave_moe_layer_step"}, 1, 1);
  const auto moe_layers = c.sizes("moe_layers"), rotary_layers = c.sizes("no_rope_layers");  // 1 = the layer rotates, despite the name
  const auto chunk = c.optional_size({"attention_chunk_size"}, 1, kMostPositions);
  const bool normed = c.flag_or({"use_qk_norm"}, true), bias = c.flag_or({"attention_bias"}, false);

  std::vector<int> kinds(static_cast<std::size_t>(d.layers));
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const bool sparse = moe_layers.empty() ? (i + 1) % step == 0 : std::find(moe_layers.begin(), moe_layers.end(), i) != moe_layers.end();
    const bool rotary = static_cast<std::size_t>(i) < rotary_layers.size() ? rotary_layers[static_cast<std::size_t>(i)] != 0 : (i + 1) % 4 != 0;
    kinds[static_cast<std::size_t>(i)] = 2 * sparse + rotary;
  }

  token_embedding(m, {.table = outer + "model.embed_tokens"});
  layers_by_kind(m, kinds, [&](int kind) {
    const bool sparse = kind & 2, rotary = kind & 1;
    AttentionShape shape = attention_shape(d);
    if (rotary) shape.window = chunk;
    return pre_norm_layer(
        "Llama4TextDecoderLayer", outer + "model.layers.{}", d.hidden, NormKind::kRms,
        [&](Builder& b, TensorId x) {
          TensorId q = b.linear("self_attn.q_proj", x, d.heads * d.head_dim, bias), k = b.linear("self_attn.k_proj", x, d.kv_heads * d.head_dim, bias);
          const TensorId v = b.linear("self_attn.v_proj", x, d.kv_heads * d.head_dim, bias);
          if (rotary) {
            q = b.rope("self_attn.rope_q", q);
            k = b.rope("self_attn.rope_k", k);
            if (normed) {
              q = b.rms_norm("self_attn.qk_norm_q", q, d.head_dim, false);
              k = b.rms_norm("self_attn.qk_norm_k", k, d.head_dim, false);
            }
          }
          return b.linear("self_attn.o_proj", b.attention("self_attn", q, k, v, shape), d.hidden, bias);
        },
        [&](Builder& b, TensorId x) {
          if (!sparse) return gated_mlp(b, x, {.module = "feed_forward", .intermediate = dense_width, .activation = act});
          const std::int64_t e = moe.experts, h = d.hidden, f = moe.intermediate;
          const TensorId weights = b.router("feed_forward.router", x, moe,
                                            {b.parameter("feed_forward.router.weight", "feed_forward.router", {e, h}, Parameter::Kind::kRouter)});
          const TensorId routed = b.experts("feed_forward.experts", x, weights, moe,
                                            {b.parameter("feed_forward.experts.gate_up_proj", "feed_forward.experts", {e, h, 2 * f}, Parameter::Kind::kExpert),
                                             b.parameter("feed_forward.experts.down_proj", "feed_forward.experts", {e, f, h}, Parameter::Kind::kExpert)});
          return b.add("feed_forward.add", gated_mlp(b, x, {.module = "feed_forward.shared_expert", .intermediate = f, .activation = act}), routed);
        });
  });
  language_head(m, {.norm = outer + "model.norm", .projection = outer + "lm_head"});
  return m;
}

}  // namespace shardfit::model
