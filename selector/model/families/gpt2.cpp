// GPT-2 (transformers/models/gpt2/modeling_gpt2.py). Its linears are Conv1D: the weight is stored [in, out].
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gpt2(const Config& c) {
  Dims d = read_dims(c, true, 4 * c.size({"n_embd", "hidden_size"}));
  d.max_positions = c.size_or({"n_positions", "max_position_embeddings", "n_ctx"}, 1024, 1, kMostPositions);
  d.attention_dropout = c.probability_or({"attn_pdrop"}, 0.1);
  Model m = begin(c, d);
  const double resid = c.probability_or({"resid_pdrop"}, 0.1);
  const Activation act = c.activation({"activation_function"}, "gelu_new");

  token_embedding(m, {.table = "transformer.wte", .positions = "transformer.wpe", .position_rows = d.max_positions, .dropout = "transformer.drop",
                      .dropout_p = c.probability_or({"embd_pdrop"}, 0.1)});

  Builder b("GPT2Block", "transformer.h.{}", d.hidden);
  TensorId x = b.input();
  const TensorId qkv = b.conv1d("attn.c_attn", b.layer_norm("ln_1", x), 3 * d.hidden);
  b.fused_targets({"q_proj", "k_proj", "v_proj"});
  const auto parts = b.split("attn.split", qkv, {d.hidden, d.hidden, d.hidden});
  const TensorId attended = b.attention("attn", parts[0], parts[1], parts[2], m.attention);
  x = b.residual(x, b.dropout("attn.resid_dropout", b.conv1d("attn.c_proj", attended, d.hidden), resid));
  const TensorId wide = b.activation("mlp.act", b.conv1d("mlp.c_fc", b.layer_norm("ln_2", x), d.intermediate), act);
  x = b.residual(x, b.dropout("mlp.dropout", b.conv1d("mlp.c_proj", wide, d.hidden), resid));
  repeat(m, b.finish(x), d.layers);

  language_head(m, {.norm = "transformer.ln_f", .kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
