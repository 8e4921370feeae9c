// Gemma 3, text (transformers/models/gemma3/modeling_gemma3.py): Gemma 2 without caps, q and k normalised by head, five layers of
// six with a window.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gemma3(const Config& c) {
  Dims d = read_dims(c, true);
  d.head_dim = c.size_or({"head_dim"}, 256, 1);
  Model m = begin(c, d);
  const bool nested = c.has("shardfit_nested");
  const std::string root = nested ? "language_model.model" : "model";
  const auto window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_activation", "hidden_act"}, "gelu_pytorch_tanh")};

  token_embedding(m, {.table = root + ".embed_tokens", .scaled = true});
  layers_by_kind(m, sliding_kinds(c, d.layers, c.size_or({"sliding_window_pattern"}, 6, 1)), [&](int sliding) {
    SelfAttention attention{attention_shape(d)};
    attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
    attention.qk_norm = QkNorm::kHead;
    if (sliding) attention.shape.window = window;
    return sandwich_layer("Gemma3DecoderLayer", root + ".layers.{}", d.hidden, attention, mlp);
  });
  language_head(m, {.norm = root + ".norm", .projection = nested ? "language_model.lm_head" : "lm_head",
                    .softcap = c.number_or({"final_logit_softcapping"}, 0, 0, 1e6)});
  return m;
}

}  // namespace shardfit::model
