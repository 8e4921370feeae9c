// GPT-Neo (transformers/models/gpt_neo/modeling_gpt_neo.py): GPT-2 with separate projections, every other layer local.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gpt_neo(const Config& c) {
  Dims d = read_dims(c, true, 4 * c.size({"hidden_size", "n_embd"}));
  Model m = begin(c, d);
  const double resid = c.probability_or({"resid_dropout"});
  const Activation act = c.activation({"activation_function"}, "gelu_new");
  const std::int64_t window = c.size_or({"window_size"}, 256, 1, kMostPositions);
  const auto words = c.words("attention_layers");
  std::vector<int> local(static_cast<std::size_t>(d.layers));
  for (std::size_t i = 0; i < local.size(); ++i) local[i] = i < words.size() ? words[i] == "local" : i % 2 == 1;

  token_embedding(m, {.table = "transformer.wte", .positions = "transformer.wpe", .position_rows = d.max_positions, .dropout = "transformer.drop",
                      .dropout_p = c.probability_or({"embed_dropout"})});
  layers_by_kind(m, local, [&](int is_local) {
    SelfAttention attention{attention_shape(d), {.module = "attn.attention", .o = "out_proj"}};
    attention.rotary = 0;
    attention.o_bias = true;
    if (is_local) attention.shape.window = window;
    return pre_norm_layer(
        "GPTNeoBlock", "transformer.h.{}", d.hidden, NormKind::kLayer,
        [&](Builder& b, TensorId x) { return b.dropout("attn.attention.resid_dropout", self_attention(b, x, attention), resid); },
        [&](Builder& b, TensorId x) {
          const Mlp mlp{.up = "c_fc", .down = "c_proj", .intermediate = d.intermediate, .activation = act, .bias = true};
          return b.dropout("mlp.dropout", plain_mlp(b, x, mlp), resid);
        },
        "ln_1", "ln_2");
  });
  language_head(m, {.norm = "transformer.ln_f", .kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
