// T5, v1.1 and Flan-T5 (transformers/models/t5/modeling_t5.py): encoder and decoder, relative position bias in the first block of
// each stack, the output projection tied unless the file says otherwise.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

namespace {

struct Sizes {
  std::int64_t hidden = 0, heads = 0, head_dim = 0, intermediate = 0, buckets = 0;
  bool gated = false;
  Activation activation = Activation::kRelu;
  double dropout = 0;
};

TensorId attention(Builder& b, TensorId n, TensorId keys, const Sizes& s, const std::string& module, AttentionShape shape, bool with_bias) {
  const std::int64_t inner = s.heads * s.head_dim;
  const TensorId q = b.linear(module + ".q", n, inner), k = b.linear(module + ".k", keys, inner), v = b.linear(module + ".v", keys, inner);
  std::vector<int> table;
  shape.relative_bias = !shape.cross;
  if (with_bias)
    table.push_back(b.parameter(module + ".relative_attention_bias.weight", module + ".relative_attention_bias", {s.buckets, s.heads}, Parameter::Kind::kEmbedding));
  return b.linear(module + ".o", b.attention(module, q, k, v, shape, std::move(table)), s.hidden);
}

TensorId feed_forward(Builder& b, TensorId n, const Sizes& s, const std::string& module) {
  TensorId wide;
  if (s.gated) {
    const TensorId gate = b.linear(module + ".wi_0", n, s.intermediate), up = b.linear(module + ".wi_1", n, s.intermediate);
    wide = b.gated_activation(module + ".act", gate, up, s.activation);
  } else {
    wide = b.activation(module + ".act", b.linear(module + ".wi", n, s.intermediate), s.activation);
  }
  return b.linear(module + ".wo", b.dropout(module + ".dropout", wide, s.dropout), s.hidden);
}

Block block(const Sizes& s, const AttentionShape& base, bool decoder, bool first) {
  Builder b("T5Block", decoder ? "decoder.block.{}" : "encoder.block.{}", s.hidden);
  TensorId x = b.input();
  AttentionShape self = base;
  self.causal = decoder;
  TensorId n = b.rms_norm("layer.0.layer_norm", x);
  x = b.residual(x, b.dropout("layer.0.dropout", attention(b, n, n, s, "layer.0.SelfAttention", self, first), s.dropout));
  std::string last = "layer.1";
  if (decoder) {
    const TensorId encoded = b.external("encoder_hidden_states", s.hidden, Space::kEncoderTokens);
    AttentionShape cross = base;
    cross.causal = false;
    cross.cross = true;
    n = b.rms_norm("layer.1.layer_norm", x);
    x = b.residual(x, b.dropout("layer.1.dropout", attention(b, n, encoded, s, "layer.1.EncDecAttention", cross, false), s.dropout));
    last = "layer.2";
  }
  n = b.rms_norm(last + ".layer_norm", x);
  x = b.residual(x, b.dropout(last + ".dropout", feed_forward(b, n, s, last + ".DenseReluDense"), s.dropout));
  return b.finish(x);
}

}  // namespace

Model build_t5(const Config& c) {
  Sizes s;
  s.hidden = c.size({"d_model"});
  s.heads = c.size({"num_heads"}, kMostHeads);
  s.head_dim = c.size_or({"d_kv"}, 64, 1);
  s.intermediate = c.size({"d_ff"});
  s.buckets = c.size_or({"relative_attention_num_buckets"}, 32, 1);
  s.dropout = c.probability_or({"dropout_rate"}, 0.1);
  const std::string kind = c.word_or({"feed_forward_proj"}, "relu");
  s.gated = c.flag_or({"is_gated_act"}, kind.starts_with("gated-"));
  const std::string_view function = kind.starts_with("gated-") ? std::string_view(kind).substr(6) : std::string_view(kind);   // is_gated_act may say otherwise
  s.activation = kind == "gated-gelu" ? Activation::kGeluTanhPython : c.activation({"dense_act_fn"}, function);
  const std::int64_t encoders = c.size({"num_layers"}, kMostLayers), decoders = c.size_or({"num_decoder_layers"}, encoders, 1, kMostLayers);

  Dims d;
  d.hidden = s.hidden;
  d.layers = decoders;
  d.heads = d.kv_heads = s.heads;
  d.head_dim = s.head_dim;
  d.intermediate = s.intermediate;
  d.vocabulary = c.size({"vocab_size"}, kMostVocabulary);
  d.max_positions = c.size_or({"n_positions"}, 512, 1, kMostPositions);
  d.norm_epsilon = c.number_or({"layer_norm_epsilon"}, 1e-6, 0, 1);
  d.attention_dropout = s.dropout;
  d.tied = c.flag_or({"tie_word_embeddings"}, true);
  Model m = begin(c, d);
  m.encoder_decoder = true;

  {
    Builder b("", "", 1);
    const TensorId decoder_ids = b.input(), encoder_ids = b.external("encoder_ids", 1, Space::kEncoderTokens);
    const TensorId x = b.embedding("shared", decoder_ids, d.vocabulary, d.hidden);
    b.op(OpKind::kEmbedding, "shared", {encoder_ids}, d.hidden, Space::kEncoderTokens).params = {0};  // the same table
    const TensorId y = b.result();
    b.dropout("encoder.dropout", y, s.dropout);
    m.embedding = b.finish(b.dropout("decoder.dropout", x, s.dropout));
    m.embedding_parameter = "shared.weight";
  }
  const auto stack = [&](std::vector<Run>& runs, bool decoder, std::int64_t count) {
    for (const bool first : {true, false}) {
      const std::int64_t n = first ? 1 : count - 1;
      if (n < 1) continue;
      m.blocks.push_back(block(s, m.attention, decoder, first));
      runs.push_back({static_cast<int>(m.blocks.size()) - 1, n});
    }
  };
  stack(m.encoder, false, encoders);
  stack(m.body, true, decoders);
  {
    Builder b("", "", d.hidden);
    const TensorId encoded = b.external("encoder_output", d.hidden, Space::kEncoderTokens);
    b.dropout("encoder.dropout", b.rms_norm("encoder.final_layer_norm", encoded), s.dropout);
    TensorId x = b.dropout("decoder.dropout", b.rms_norm("decoder.final_layer_norm", b.input()), s.dropout);
    if (d.tied) x = b.tied_linear("lm_head", b.scale("scale", x), d.vocabulary);
    else x = b.linear("lm_head", x, d.vocabulary);
    m.head = b.finish(x);
  }
  return m;
}

}  // namespace shardfit::model
