// Gemma 4, text (transformers/models/gemma4/modeling_gemma4.py): windows in most layers, other head sizes in the full ones (where v
// is k), experts beside a dense MLP in the sparse ones, and in the small ones an embedding of its own for every layer and last layers
// that use the keys and values of earlier ones.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gemma4(const Config& c) {
  Dims d = read_dims(c, true);
  Model m = begin(c, d);
  const std::string root = c.has("shardfit_nested") ? "model.language_model" : "model";
  const auto window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  const std::int64_t full_dim = c.size_or({"global_head_dim"}, d.head_dim, 1), full_kv = c.size_or({"num_global_key_value_heads"}, d.kv_heads, 1, kMostHeads);
  check_groups(c, "num_global_key_value_heads", d.heads, full_kv);
  const bool v_is_k = c.flag_or({"attention_k_eq_v"}, false), sparse = c.flag_or({"enable_moe_block"}, false), bias = c.flag_or({"attention_bias"}, false);
  const Activation act = c.activation({"hidden_activation"}, "gelu_pytorch_tanh");
  const Mlp mlp{.intermediate = d.intermediate, .activation = act};
  MoeShape moe;
  if (sparse) moe = read_moe(c, c.size({"num_experts"}, kMostExperts), c.size({"moe_intermediate_size"}));

  const std::int64_t shared_layers = c.size_or({"num_kv_shared_layers"}, 0), own = c.size_or({"hidden_size_per_layer_input"}, 0);
  const bool double_wide = c.flag_or({"use_double_wide_mlp"}, false);
  std::vector<int> kinds = sliding_kinds(c, d.layers, 6);
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (shared_layers > 0 && shared_layers < d.layers && static_cast<std::int64_t>(i) >= d.layers - shared_layers) kinds[i] += 2;

  {
    Builder b("", "", 1);
    const TensorId x = b.scale("normalizer", b.embedding(root + ".embed_tokens", b.input(), d.vocabulary, d.hidden));
    if (own > 0) {
      const std::int64_t rows = c.size_or({"vocab_size_per_layer_input"}, d.vocabulary, 1, kMostVocabulary);
      const TensorId table = b.scale("per_layer_scale", b.embedding(root + ".embed_tokens_per_layer", b.input(), rows, d.layers * own));
      const TensorId projected = b.scale("per_layer_projection_scale", b.linear(root + ".per_layer_model_projection", x, d.layers * own));
      b.scale("per_layer_input_scale", b.add("per_layer_add", b.rms_norm(root + ".per_layer_projection_norm", projected, own), table));
    }
    m.embedding = b.finish(x);
    m.embedding_parameter = root + ".embed_tokens.weight";
  }
  layers_by_kind(m, kinds, [&](int kind) {
    const bool sliding = kind & 1, shared = kind & 2;
    SelfAttention a{attention_shape(d)};
    if (sliding) {
      a.shape.window = window;
    } else {
      a.shape.head_dim = a.shape.value_head_dim = full_dim;
      a.shape.kv_heads = full_kv;
    }
    a.qkv_bias = a.o_bias = bias;
    a.qk_norm = QkNorm::kHead;
    Builder b("Gemma4TextDecoderLayer", root + ".layers.{}", d.hidden);
    TensorId x = b.input();
    const TensorId n = b.rms_norm("input_layernorm", x);
    const std::int64_t kv_width = a.shape.kv_heads * a.shape.head_dim;
    const TensorId q = b.linear("self_attn.q_proj", n, a.shape.heads * a.shape.head_dim, bias);
    TensorId attended;
    if (shared) {  // keys and values of the last layer of its kind that has its own
      const TensorId k = b.external("shared_keys", kv_width, Space::kTokens), v = b.external("shared_values", kv_width, Space::kTokens);
      attended = b.attention("self_attn", b.rope("self_attn.rope_q", b.rms_norm("self_attn.q_norm", q, a.shape.head_dim)), k, v, a.shape);
    } else {
      const TensorId k = b.linear("self_attn.k_proj", n, kv_width, bias);
      const TensorId v = v_is_k && !sliding ? k : b.linear("self_attn.v_proj", n, kv_width, bias);
      attended = attend(b, q, k, b.rms_norm("self_attn.v_norm", v, a.shape.head_dim, false), a);
    }
    attended = b.linear("self_attn.o_proj", attended, d.hidden, bias);
    x = b.residual(x, b.rms_norm("post_attention_layernorm", attended));
    Mlp dense = mlp;
    if (shared && double_wide) dense.intermediate *= 2;
    TensorId fed = gated_mlp(b, b.rms_norm("pre_feedforward_layernorm", x), dense);
    if (sparse) {
      const std::int64_t e = moe.experts, h = d.hidden, f = moe.intermediate;
      fed = b.rms_norm("post_feedforward_layernorm_1", fed);
      const TensorId scaled = b.scale("router.scale", b.rms_norm("router.norm", x, 0, false), {b.parameter("router.scale", "router", {h}, Parameter::Kind::kOther)});
      const TensorId weights = b.router("router.proj", scaled, moe,
                                        {b.parameter("router.proj.weight", "router.proj", {e, h}, Parameter::Kind::kRouter),
                                         b.parameter("router.per_expert_scale", "router", {e}, Parameter::Kind::kOther)});
      const TensorId routed = b.experts("experts", b.rms_norm("pre_feedforward_layernorm_2", x), weights, moe,
                                        {b.parameter("experts.gate_up_proj", "experts", {e, 2 * f, h}, Parameter::Kind::kExpert),
                                         b.parameter("experts.down_proj", "experts", {e, h, f}, Parameter::Kind::kExpert)});
      fed = b.add("add", fed, b.rms_norm("post_feedforward_layernorm_2", routed));
    }
    x = b.residual(x, b.rms_norm("post_feedforward_layernorm", fed));
    if (own > 0) {
      const TensorId per_layer = b.external("per_layer_input", own, Space::kTokens);
      const TensorId gate = b.activation("act_fn", b.linear("per_layer_input_gate", x, own), act);
      const TensorId y = b.linear("per_layer_projection", b.multiply("per_layer_multiply", gate, per_layer), d.hidden);
      x = b.residual(x, b.rms_norm("post_per_layer_input_norm", y));
    }
    return b.finish(b.scale("layer_scalar", x));
  });
  language_head(m, {.norm = root + ".norm", .softcap = c.number_or({"final_logit_softcapping"}, 0, 0, 1e6)});
  return m;
}

}  // namespace shardfit::model
