// OLMo 1 (transformers/models/olmo/modeling_olmo.py): Llama with norms that have no weights.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_olmo(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};
  const auto bare_norm = [](Builder& b, const std::string& module, TensorId x) {
    Op& op = b.op(OpKind::kNorm, module, {x}, b.width(x), Space::kTokens);
    op.group = b.width(x);
    return b.result();
  };

  token_embedding(m, {});
  Builder b("OlmoDecoderLayer", "model.layers.{}", d.hidden);
  TensorId x = b.input();
  x = b.residual(x, self_attention(b, bare_norm(b, "input_layernorm", x), attention));
  x = b.residual(x, gated_mlp(b, bare_norm(b, "post_attention_layernorm", x), mlp));
  repeat(m, b.finish(x), d.layers);

  Builder h("", "", d.hidden);
  const TensorId n = bare_norm(h, "model.norm", h.input());
  m.head = h.finish(d.tied ? h.tied_linear("lm_head", n, d.vocabulary) : h.linear("lm_head", n, d.vocabulary));
  return m;
}

}  // namespace shardfit::model
