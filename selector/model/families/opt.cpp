// OPT (transformers/models/opt/modeling_opt.py). OPT-350m normalises after each sub-layer and projects a narrower token table.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_opt(const Config& c) {
  Dims d = read_dims(c, true, 4 * c.size({"hidden_size"}));
  Model m = begin(c, d);
  const double drop = c.probability_or({"dropout"}, 0.1);
  const bool bias = c.flag_or({"enable_bias"}, true), before = c.flag_or({"do_layer_norm_before"}, true);
  const std::int64_t narrow = c.size_or({"word_embed_proj_dim"}, d.hidden, 1);
  SelfAttention attention{attention_shape(d), {.o = "out_proj"}};
  attention.rotary = 0;
  attention.qkv_bias = attention.o_bias = bias;
  const Mlp mlp{.module = "", .up = "fc1", .down = "fc2", .intermediate = d.intermediate, .activation = c.activation({"activation_function"}, "relu"), .bias = bias};

  {
    Builder b("", "", 1);
    TensorId x = b.embedding("model.decoder.embed_tokens", b.input(), d.vocabulary, narrow);
    if (narrow != d.hidden) x = b.linear("model.decoder.project_in", x, d.hidden);
    m.embedding = b.finish(b.position_embedding("model.decoder.embed_positions", x, d.max_positions + 2));  // two rows of offset
    m.embedding_parameter = "model.decoder.embed_tokens.weight";
  }
  Builder b("OPTDecoderLayer", "model.decoder.layers.{}", d.hidden);
  TensorId x = b.input();
  const auto sub_layer = [&](const char* norm_name, const SubLayer& run, const char* dropped) {
    TensorId y = before ? b.layer_norm(norm_name, x) : x;
    x = b.residual(x, b.dropout(dropped, run(b, y), drop));
    if (!before) x = b.layer_norm(norm_name, x);
  };
  sub_layer("self_attn_layer_norm", [&](Builder& to, TensorId y) { return self_attention(to, y, attention); }, "attn_dropout");
  sub_layer("final_layer_norm", [&](Builder& to, TensorId y) { return plain_mlp(to, y, mlp); }, "dropout");
  repeat(m, b.finish(x), d.layers);

  Builder h("", "", d.hidden);
  TensorId y = h.input();
  if (before && !c.flag_or({"_remove_final_layer_norm"}, false)) y = h.layer_norm("model.decoder.final_layer_norm", y);
  if (narrow != d.hidden) y = h.linear("model.decoder.project_out", y, narrow);
  m.head = h.finish(d.tied ? h.tied_linear("lm_head", y, d.vocabulary) : h.linear("lm_head", y, d.vocabulary));
  return m;
}

}  // namespace shardfit::model
