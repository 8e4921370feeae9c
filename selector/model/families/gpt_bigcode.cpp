// StarCoder, SantaCoder, WizardCoder (transformers/models/gpt_bigcode/modeling_gpt_bigcode.py): GPT-2 with one key-value head.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gpt_bigcode(const Config& c) {
  Dims d = read_dims(c, true, 4 * c.size({"n_embd", "hidden_size"}));
  d.kv_heads = c.flag_or({"multi_query"}, true) ? 1 : d.heads;
  d.max_positions = c.size_or({"n_positions", "max_position_embeddings"}, 1024, 1, kMostPositions);
  d.attention_dropout = c.probability_or({"attn_pdrop"}, 0.1);
  Model m = begin(c, d);
  const double resid = c.probability_or({"resid_pdrop"}, 0.1);
  const Activation act = c.activation({"activation_function"}, "gelu_pytorch_tanh");

  token_embedding(m, {.table = "transformer.wte", .positions = "transformer.wpe", .position_rows = d.max_positions, .dropout = "transformer.drop",
                      .dropout_p = c.probability_or({"embd_pdrop"}, 0.1)});
  repeat(m,
         pre_norm_layer(
             "GPTBigCodeBlock", "transformer.h.{}", d.hidden, NormKind::kLayer,
             [&](Builder& b, TensorId x) {
               const auto qkv = fused_qkv(b, "attn.c_attn", x, m.attention, true);
               const TensorId y = b.attention("attn", qkv[0], qkv[1], qkv[2], m.attention);
               return b.dropout("attn.resid_dropout", b.linear("attn.c_proj", y, d.hidden, true), resid);
             },
             [&](Builder& b, TensorId x) {
               const Mlp mlp{.up = "c_fc", .down = "c_proj", .intermediate = d.intermediate, .activation = act, .bias = true};
               return b.dropout("mlp.dropout", plain_mlp(b, x, mlp), resid);
             },
             "ln_1", "ln_2"),
         d.layers);
  language_head(m, {.norm = "transformer.ln_f", .kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
