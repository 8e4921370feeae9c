// GPT-NeoX, Pythia, StableLM alpha (transformers/models/gpt_neox/modeling_gpt_neox.py).
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gpt_neox(const Config& c) {
  const Dims d = read_dims(c, false, 4 * c.size({"hidden_size"}));
  Model m = begin(c, d);
  const double drop = c.probability_or({"hidden_dropout"});
  const bool bias = c.flag_or({"attention_bias"}, true);
  SelfAttention attention{attention_shape(d), {.module = "attention"}};
  attention.rotary = c.number_or({"rotary_pct", "partial_rotary_factor"}, 0.25, 0, 1);
  const Mlp mlp{.up = "dense_h_to_4h", .down = "dense_4h_to_h", .intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "gelu"), .bias = true};

  token_embedding(m, {.table = "gpt_neox.embed_in", .dropout = "gpt_neox.emb_dropout", .dropout_p = drop});

  Builder b("GPTNeoXLayer", "gpt_neox.layers.{}", d.hidden);
  TensorId x = b.input();
  const auto qkv = fused_qkv(b, "attention.query_key_value", b.layer_norm("input_layernorm", x), attention.shape, bias);
  TensorId attended = b.linear("attention.dense", attend(b, qkv[0], qkv[1], qkv[2], attention), d.hidden, bias);
  attended = b.dropout("post_attention_dropout", attended, drop);
  if (c.flag_or({"use_parallel_residual"}, true)) {
    const TensorId fed = b.dropout("post_mlp_dropout", plain_mlp(b, b.layer_norm("post_attention_layernorm", x), mlp), drop);
    x = b.residual(b.add("add", fed, attended), x);
  } else {
    x = b.residual(x, attended);
    x = b.residual(x, b.dropout("post_mlp_dropout", plain_mlp(b, b.layer_norm("post_attention_layernorm", x), mlp), drop));
  }
  repeat(m, b.finish(x), d.layers);

  language_head(m, {.norm = "gpt_neox.final_layer_norm", .kind = NormKind::kLayer, .projection = "embed_out"});
  return m;
}

}  // namespace shardfit::model
