// Gemma 2 (transformers/models/gemma2/modeling_gemma2.py): norms before and after each sub-layer, capped logits, every other layer
// with a window.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_gemma2(const Config& c) {
  Dims d = read_dims(c, true);
  d.head_dim = c.size_or({"head_dim"}, 256, 1);
  Model m = begin(c, d);
  m.facts["attention_softcap"] = c.number_or({"attn_logit_softcapping"}, 0, 0, 1e6);
  const auto window = c.optional_size({"sliding_window"}, 1, kMostPositions);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_activation", "hidden_act"}, "gelu_pytorch_tanh")};

  token_embedding(m, {.scaled = true});
  layers_by_kind(m, sliding_kinds(c, d.layers, 2), [&](int sliding) {
    SelfAttention attention{attention_shape(d)};
    attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
    if (sliding) attention.shape.window = window;
    return sandwich_layer("Gemma2DecoderLayer", "model.layers.{}", d.hidden, attention, mlp);
  });
  language_head(m, {.softcap = c.number_or({"final_logit_softcapping"}, 0, 0, 1e6)});
  return m;
}

}  // namespace shardfit::model
