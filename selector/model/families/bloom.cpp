// BLOOM (transformers/models/bloom/modeling_bloom.py): ALiBi, a norm after the token table.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_bloom(const Config& c) {
  const std::int64_t hidden = c.size({"hidden_size", "n_embed", "n_embd"});
  Dims d;
  d.hidden = hidden;
  d.layers = c.size({"n_layer", "num_hidden_layers"}, kMostLayers);
  d.heads = d.kv_heads = c.size({"n_head", "num_attention_heads"}, kMostHeads);
  check_heads(c, hidden, d.heads);
  d.head_dim = hidden / d.heads;
  d.intermediate = 4 * hidden;
  d.vocabulary = c.size({"vocab_size"}, kMostVocabulary);
  d.max_positions = c.size_or({"seq_length", "max_position_embeddings"}, 2048, 1, kMostPositions);
  d.norm_epsilon = c.number_or({"layer_norm_epsilon"}, 1e-5, 0, 1);
  d.attention_dropout = c.probability_or({"attention_dropout"});
  d.tied = c.flag_or({"tie_word_embeddings"}, true);
  Model m = begin(c, d);
  m.attention.alibi = true;
  const double drop = c.probability_or({"hidden_dropout"});

  {
    Builder b("", "", 1);
    const TensorId x = b.embedding("transformer.word_embeddings", b.input(), d.vocabulary, hidden);
    m.embedding = b.finish(b.layer_norm("transformer.word_embeddings_layernorm", x));
    m.embedding_parameter = "transformer.word_embeddings.weight";
  }
  repeat(m,
         pre_norm_layer(
             "BloomBlock", "transformer.h.{}", hidden, NormKind::kLayer,
             [&](Builder& b, TensorId x) {
               const auto qkv = fused_qkv(b, "self_attention.query_key_value", x, m.attention, true);
               const TensorId y = b.attention("self_attention", qkv[0], qkv[1], qkv[2], m.attention);
               return b.dropout("self_attention.dropout", b.linear("self_attention.dense", y, hidden, true), drop);
             },
             [&](Builder& b, TensorId x) {
               const Mlp mlp{.up = "dense_h_to_4h", .down = "dense_4h_to_h", .intermediate = d.intermediate, .activation = Activation::kGeluTanh, .bias = true};
               return b.dropout("mlp.dropout", plain_mlp(b, x, mlp), drop);
             }),
         d.layers);
  language_head(m, {.norm = "transformer.ln_f", .kind = NormKind::kLayer});
  return m;
}

}  // namespace shardfit::model
