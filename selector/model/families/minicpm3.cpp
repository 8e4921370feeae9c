// MiniCPM3 (modeling_minicpm.py of its repository): latent attention, residual branches and embeddings scaled by constants.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_minicpm3(const Config& c) {
  const Dims d = read_dims(c, true);
  Model m = begin(c, d);
  const Mla mla = read_mla(c, d);
  m.attention = latent_shape(mla);
  const Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu")};

  token_embedding(m, {.scaled = true});
  Builder b("MiniCPMDecoderLayer", "model.layers.{}", d.hidden);
  TensorId x = b.input();
  x = b.residual(x, b.scale("scale_depth", latent_attention(b, b.rms_norm("input_layernorm", x), mla)));
  x = b.residual(x, b.scale("scale_depth", gated_mlp(b, b.rms_norm("post_attention_layernorm", x), mlp)));
  repeat(m, b.finish(x), d.layers);
  language_head(m, {.scaled = true});
  return m;
}

}  // namespace shardfit::model
