// Falcon 7B, 11B, 40B, 180B and RW (transformers/models/falcon/modeling_falcon.py): fused q, k, v with few key-value heads,
// attention and MLP in parallel, with one norm or two.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_falcon(const Config& c) {
  Dims d = read_dims(c, true, 4 * c.size({"hidden_size", "n_embed"}));
  const bool new_layout = c.flag_or({"new_decoder_architecture"}, false), parallel = c.flag_or({"parallel_attn"}, true) || new_layout;
  const bool bias = c.flag_or({"bias"}, false), alibi = c.flag_or({"alibi"}, false);
  if (!new_layout) d.kv_heads = c.flag_or({"multi_query"}, true) ? 1 : d.heads;
  Model m = begin(c, d);
  const double drop = c.probability_or({"hidden_dropout"});
  SelfAttention attention{attention_shape(d), {.module = "self_attention"}};
  attention.shape.alibi = alibi;
  attention.rotary = alibi ? 0 : 1;
  m.attention = attention.shape;
  const Mlp mlp{.up = "dense_h_to_4h", .down = "dense_4h_to_h", .intermediate = d.intermediate, .activation = c.activation({"activation"}, "gelu"), .bias = bias};
  const bool two_norms = new_layout && c.size_or({"num_ln_in_parallel_attn"}, 2, 1, 2) == 2;

  token_embedding(m, {.table = "transformer.word_embeddings"});

  Builder b("FalconDecoderLayer", "transformer.h.{}", d.hidden);
  TensorId x = b.input();
  const TensorId n = b.layer_norm(two_norms ? "ln_attn" : "input_layernorm", x);
  const TensorId n_mlp = two_norms ? b.layer_norm("ln_mlp", x) : n;
  const auto qkv = fused_qkv(b, "self_attention.query_key_value", n, attention.shape, bias);
  const TensorId attended = b.linear("self_attention.dense", attend(b, qkv[0], qkv[1], qkv[2], attention), d.hidden, bias);
  if (parallel) {
    const TensorId both = b.add("add", plain_mlp(b, n_mlp, mlp), attended);
    x = b.residual(x, b.dropout("dropout", both, drop));
  } else {
    x = b.residual(x, b.dropout("attention_dropout", attended, drop));
    x = b.residual(x, b.dropout("dropout", plain_mlp(b, b.layer_norm("post_attention_layernorm", x), mlp), drop));
  }
  repeat(m, b.finish(x), d.layers);

  language_head(m, {.norm = "transformer.ln_f", .kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
