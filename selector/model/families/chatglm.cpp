// ChatGLM 2 and 3, GLM-4-9b-chat (modeling_chatglm.py of their repositories). The vocabulary is padded_vocab_size; half of each
// head is rotated.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_chatglm(const Config& c) {
  Dims d;
  d.hidden = c.size({"hidden_size"});
  d.layers = c.size({"num_layers", "num_hidden_layers"}, kMostLayers);
  d.heads = c.size({"num_attention_heads"}, kMostHeads);
  if (!c.has("kv_channels")) check_heads(c, d.hidden, d.heads);
  d.head_dim = c.size_or({"kv_channels"}, d.hidden / d.heads, 1);
  d.kv_heads = c.flag_or({"multi_query_attention"}, false) ? c.size_or({"multi_query_group_num"}, 1, 1, kMostHeads) : d.heads;
  check_groups(c, "multi_query_group_num", d.heads, d.kv_heads);
  d.intermediate = c.size({"ffn_hidden_size"});
  d.vocabulary = c.size({"padded_vocab_size", "vocab_size"}, kMostVocabulary);
  d.max_positions = c.size_or({"seq_length"}, 2048, 1, kMostPositions);
  d.norm_epsilon = c.number_or({"layernorm_epsilon"}, 1e-5, 0, 1);
  d.attention_dropout = c.probability_or({"attention_dropout"});
  d.tied = c.flag_or({"tie_word_embeddings"}, false);
  const bool bias = c.flag_or({"add_bias_linear"}, false), qkv_bias = bias || c.flag_or({"add_qkv_bias"}, false);
  const NormKind norm_kind = c.flag_or({"rmsnorm"}, true) ? NormKind::kRms : NormKind::kLayer;
  const double drop = c.probability_or({"hidden_dropout"});
  Model m = begin(c, d);
  SelfAttention attention{attention_shape(d), {.module = "self_attention"}};
  attention.rotary = 0.5;
  const Mlp mlp{.up = "dense_h_to_4h", .down = "dense_4h_to_h", .intermediate = d.intermediate, .bias = bias};

  token_embedding(m, {.table = "transformer.embedding.word_embeddings"});
  repeat(m,
         pre_norm_layer(
             "GLMBlock", "transformer.encoder.layers.{}", d.hidden, norm_kind,
             [&](Builder& b, TensorId x) {
               const auto qkv = fused_qkv(b, "self_attention.query_key_value", x, attention.shape, qkv_bias);
               return b.dropout("attention_dropout", b.linear("self_attention.dense", attend(b, qkv[0], qkv[1], qkv[2], attention), d.hidden, bias), drop);
             },
             [&](Builder& b, TensorId x) { return b.dropout("mlp_dropout", fused_gated_mlp(b, x, mlp), drop); }),
         d.layers);
  language_head(m, {.norm = c.flag_or({"post_layer_norm"}, true) ? "transformer.encoder.final_layernorm" : "", .kind = norm_kind,
                    .projection = "transformer.output_layer"});
  return m;
}

}  // namespace shardfit::model
