// StableLM 2 and 3B (transformers/models/stablelm/modeling_stablelm.py): LayerNorm, gated MLP, a quarter of each head rotated.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_stablelm(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  const double drop = c.probability_or({"hidden_dropout"});
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = c.flag_or({"use_qkv_bias"}, false);
  attention.rotary = c.number_or({"partial_rotary_factor", "rope_pct"}, 0.25, 0, 1);
  const bool head_norms = c.flag_or({"qk_layernorm"}, false);  // a LayerNorm without bias of its own for every head
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};

  const auto attend_normed = [&](Builder& b, TensorId n) {
    TensorId q = b.linear("self_attn.q_proj", n, d.heads * d.head_dim, attention.qkv_bias);
    TensorId k = b.linear("self_attn.k_proj", n, d.kv_heads * d.head_dim, attention.qkv_bias);
    const TensorId v = b.linear("self_attn.v_proj", n, d.kv_heads * d.head_dim, attention.qkv_bias);
    const auto by_head = [&](const std::string& module, TensorId t, std::int64_t heads) {
      Op& op = b.op(OpKind::kNorm, module, {t}, heads * d.head_dim, Space::kTokens);
      op.group = d.head_dim;
      const TensorId y = b.result();
      for (std::int64_t i = 0; i < heads; ++i) {
        const std::string one = module + ".norms." + std::to_string(i);
        b.last().params.push_back(b.parameter(one + ".weight", one, {d.head_dim}, Parameter::Kind::kNorm));
      }
      return y;
    };
    if (head_norms) {
      q = by_head("self_attn.q_layernorm", q, d.heads);
      k = by_head("self_attn.k_layernorm", k, d.kv_heads);
    }
    return b.linear("self_attn.o_proj", attend(b, q, k, v, attention), d.hidden);
  };

  token_embedding(m, {});
  Builder b("StableLmDecoderLayer", "model.layers.{}", d.hidden);
  TensorId x = b.input();
  const TensorId n = b.layer_norm("input_layernorm", x);
  const TensorId attended = attend_normed(b, n);
  if (c.flag_or({"use_parallel_residual"}, false)) {
    const TensorId fed = b.dropout("dropout", gated_mlp(b, n, mlp), drop);
    x = b.residual(b.residual(x, attended), fed);
  } else {
    x = b.residual(x, attended);
    x = b.residual(x, b.dropout("dropout", gated_mlp(b, b.layer_norm("post_attention_layernorm", x), mlp), drop));
  }
  repeat(m, b.finish(x), d.layers);
  language_head(m, {.kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
