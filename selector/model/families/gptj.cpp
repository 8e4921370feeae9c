// GPT-J (transformers/models/gptj/modeling_gptj.py): one norm, attention and MLP in parallel, a bias on the output projection.
// Its first files call themselves gpt_neo with "rotary": true.
#include <algorithm>

#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gptj(const Config& c) {
  Dims d = read_dims(c, false, 4 * c.size({"n_embd", "hidden_size"}));
  Model m = begin(c, d);
  const double resid = c.probability_or({"resid_pdrop", "resid_dropout"});
  SelfAttention attention{attention_shape(d), {.module = "attn"}};
  attention.rotary = static_cast<double>(c.size_or({"rotary_dim"}, std::min<std::int64_t>(64, d.head_dim), 1, d.head_dim)) / static_cast<double>(d.head_dim);

  token_embedding(m, {.table = "transformer.wte", .dropout = "transformer.drop", .dropout_p = c.probability_or({"embd_pdrop", "embed_dropout"})});

  Builder b("GPTJBlock", "transformer.h.{}", d.hidden);
  const TensorId x = b.input(), n = b.layer_norm("ln_1", x);
  const std::int64_t width = d.heads * d.head_dim;
  const TensorId q = b.linear("attn.q_proj", n, width), k = b.linear("attn.k_proj", n, width), v = b.linear("attn.v_proj", n, width);
  const TensorId attended = b.dropout("attn.resid_dropout", b.linear("attn.out_proj", attend(b, q, k, v, attention), d.hidden), resid);
  const Mlp mlp{.up = "fc_in", .down = "fc_out", .intermediate = d.intermediate, .activation = c.activation({"activation_function"}, "gelu_new"), .bias = true};
  const TensorId fed = b.dropout("mlp.dropout", plain_mlp(b, n, mlp), resid);
  repeat(m, b.finish(b.residual(b.add("add", attended, fed), x)), d.layers);

  language_head(m, {.norm = "transformer.ln_f", .kind = NormKind::kLayer, .bias = true});
  return m;
}

}  // namespace shardfit::model
