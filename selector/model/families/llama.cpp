// Llama 1 to 3.3, CodeLlama, TinyLlama, Yi, SmolLM2 (transformers/models/llama/modeling_llama.py).
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_llama(const Config& c) {
  const Dims d = read_dims(c, false);
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d)};
  attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias", "bias"}, false);
  Mlp mlp{.intermediate = d.intermediate, .activation = c.activation({"hidden_act"}, "silu"), .bias = c.flag_or({"mlp_bias"}, false)};

  token_embedding(m, {});
  repeat(m,
         pre_norm_layer(
             "LlamaDecoderLayer", "model.layers.{}", d.hidden, NormKind::kRms,
             [&](Builder& b, TensorId x) { return self_attention(b, x, attention); }, [&](Builder& b, TensorId x) { return gated_mlp(b, x, mlp); }),
         d.layers);
  language_head(m, {});
  return m;
}

}  // namespace shardfit::model
