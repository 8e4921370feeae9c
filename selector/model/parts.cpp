#include "selector/model/parts.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "regions/base/error.hpp"

namespace shardfit::model {

void check_heads(const Config& c, std::int64_t hidden, std::int64_t heads) {
  if (hidden % heads != 0)
    throw c.wrong("num_attention_heads", fmt::format("{} attention heads do not divide the width {}", heads, hidden), "correct the config.json");
}

void check_groups(const Config& c, std::string_view key, std::int64_t heads, std::int64_t kv_heads) {
  if (kv_heads > heads || heads % kv_heads != 0)
    throw c.wrong(key, fmt::format("{} key-value heads do not divide {} attention heads", kv_heads, heads), "correct the config.json");
}

Dims read_dims(const Config& c, bool tied, std::int64_t default_intermediate) {
  Dims d;
  d.hidden = c.size({"hidden_size", "n_embd", "d_model", "model_dim"});
  d.layers = c.size({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, kMostLayers);
  d.heads = c.size({"num_attention_heads", "n_head", "n_heads", "num_heads"}, kMostHeads);
  d.kv_heads = c.size_or({"num_key_value_heads", "num_kv_heads", "n_head_kv"}, d.heads, 1, kMostHeads);
  if (!c.has("head_dim")) check_heads(c, d.hidden, d.heads);
  d.head_dim = c.size_or({"head_dim"}, d.hidden / d.heads, 1);
  check_groups(c, "num_key_value_heads", d.heads, d.kv_heads);
  d.intermediate = default_intermediate > 0 ? c.size_or({"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"}, default_intermediate, 1)
                                            : c.size({"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"});
  d.vocabulary = c.size({"vocab_size", "padded_vocab_size"}, kMostVocabulary);
  d.max_positions = c.size_or({"max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length"}, 2048, 1, kMostPositions);
  d.norm_epsilon = c.number_or({"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon", "layernorm_epsilon"}, 1e-5, 0, 1);
  d.attention_dropout = c.probability_or({"attention_dropout", "attn_pdrop", "attn_dropout_prob"});
  d.tied = c.flag_or({"tie_word_embeddings"}, tied);
  return d;
}

AttentionShape attention_shape(const Dims& d) {
  AttentionShape a;
  a.heads = d.heads;
  a.kv_heads = d.kv_heads;
  a.head_dim = a.value_head_dim = d.head_dim;
  a.dropout = d.attention_dropout;
  return a;
}

void read_rope(const Config& c, Model& m, double default_theta) {
  const auto own = [&](const Config& r) {
    m.rope_theta = r.number_or({"rope_theta", "rotary_emb_base", "rope_base", "base"}, m.rope_theta, 1, 1e18);
    const std::string type = r.word_or({"rope_type", "type"}, "default");
    static const std::map<std::string, int, std::less<>> kTypes{{"default", 0}, {"linear", 1}, {"dynamic", 2}, {"yarn", 3}, {"longrope", 4}, {"su", 4}, {"llama3", 5}};
    if (const auto it = kTypes.find(type); it != kTypes.end()) m.facts["rope_type"] = it->second;
    else m.facts["rope_type"] = -1;  // of no consequence for memory and time; the runtime refuses it
    const auto keep = [&](const char* key, const char* fact) {
      if (r.has(key)) m.facts[fact] = r.number_or({key}, 0, -1e18, 1e18);
    };
    keep("factor", "rope_factor");
    keep("low_freq_factor", "rope_low_freq_factor");
    keep("high_freq_factor", "rope_high_freq_factor");
    keep("original_max_position_embeddings", "rope_original_max_positions");
    keep("beta_fast", "rope_beta_fast");
    keep("beta_slow", "rope_beta_slow");
    keep("attention_factor", "rope_attention_factor");
  };
  m.rope_theta = c.number_or({"rope_theta", "rotary_emb_base", "rotary_base"}, default_theta, 1, 1e18);
  if (const auto scaling = c.section("rope_scaling")) own(*scaling);
  if (const auto parameters = c.section("rope_parameters")) {  // transformers 5; by kind of layer in Gemma and ModernBERT
    const auto full = parameters->section("full_attention");
    own(full ? *full : *parameters);
  }
}

Model begin(const Config& c, const Dims& d) {
  Model m;
  m.hidden = d.hidden;
  m.layers = d.layers;
  m.vocabulary = d.vocabulary;
  m.max_positions = d.max_positions;
  m.intermediate = d.intermediate;
  m.tied_embeddings = d.tied;
  m.norm_epsilon = d.norm_epsilon;
  m.attention = attention_shape(d);
  read_rope(c, m);
  if (!c.flag_or({"use_cache"}, true)) m.facts["use_cache"] = 0;
  return m;
}

void repeat(Model& m, Block block, std::int64_t count) {
  if (count < 1) return;
  m.blocks.push_back(std::move(block));
  m.body.push_back({static_cast<int>(m.blocks.size()) - 1, count});
}

void layers_by_kind(Model& m, const std::vector<int>& kinds, const std::function<Block(int)>& build) {
  std::map<int, int> built;
  for (int kind : kinds) {
    auto it = built.find(kind);
    if (it == built.end()) {
      m.blocks.push_back(build(kind));
      it = built.emplace(kind, static_cast<int>(m.blocks.size()) - 1).first;
    }
    if (!m.body.empty() && m.body.back().block == it->second) ++m.body.back().count;
    else m.body.push_back({it->second, 1});
  }
}

std::vector<int> sliding_kinds(const Config& c, std::int64_t layers, std::int64_t period) {
  std::vector<int> kinds(static_cast<std::size_t>(layers), 0);
  const auto words = c.words("layer_types");
  if (!words.empty() && words.size() != kinds.size())
    throw c.wrong("layer_types", fmt::format("\"layer_types\" names {} layers, the model has {}", words.size(), layers), "correct the config.json");
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!words.empty()) kinds[i] = words[i] == "sliding_attention" || words[i] == "chunked_attention";
    else if (period > 0) kinds[i] = (i + 1) % static_cast<std::size_t>(period) != 0;
  }
  return kinds;
}

Block pre_norm_layer(const std::string& class_name, const std::string& prefix, std::int64_t hidden, NormKind kind, const SubLayer& attention,
                     const SubLayer& feed_forward, const std::string& first, const std::string& second) {
  Builder b(class_name, prefix, hidden);
  TensorId x = b.input();
  x = b.residual(x, attention(b, norm(b, kind, first, x)));
  x = b.residual(x, feed_forward(b, norm(b, kind, second, x)));
  return b.finish(x);
}

TensorId norm(Builder& b, NormKind kind, const std::string& module, TensorId x) {
  return kind == NormKind::kRms ? b.rms_norm(module, x) : b.layer_norm(module, x, kind == NormKind::kLayer);
}

void token_embedding(Model& m, const Embedding& e) {
  Builder b("", "", 1);
  TensorId x = b.embedding(e.table, b.input(), m.vocabulary, m.hidden);
  if (e.scaled) x = b.scale("normalizer", x);
  if (!e.positions.empty()) x = b.position_embedding(e.positions, x, e.position_rows);
  if (!e.dropout.empty()) x = b.dropout(e.dropout, x, e.dropout_p);
  m.embedding = b.finish(x);
  m.embedding_parameter = e.table + ".weight";
}

void language_head(Model& m, const Head& h) {
  Builder b("", "", m.hidden);
  TensorId x = b.input();
  if (!h.norm.empty()) x = norm(b, h.kind, h.norm, x);
  if (h.scaled) x = b.scale("logit_scale", x);
  if (m.tied_embeddings) x = b.tied_linear(h.projection, x, m.vocabulary, h.bias ? h.projection + ".bias" : "");
  else x = b.linear(h.projection, x, m.vocabulary, h.bias);
  if (h.softcap > 0) x = b.scale("softcap_out", b.activation("softcap", b.scale("softcap_in", x), Activation::kTanh));
  m.head = b.finish(x);
  m.head_parameter = h.projection + ".weight";
}

TensorId attend(Builder& b, TensorId q, TensorId k, TensorId v, const SelfAttention& a) {
  const AttentionNames& n = a.names;
  const std::string dot = n.module + ".";
  if (a.qk_norm != QkNorm::kNone) {
    const std::int64_t group = a.qk_norm == QkNorm::kHead ? a.shape.head_dim : 0;
    const auto normed = [&](const std::string& module, TensorId x) {
      return a.qk_norm_kind == NormKind::kRms ? b.rms_norm(module, x, group) : b.layer_norm(module, x, a.qk_norm_kind == NormKind::kLayer, group);
    };
    q = normed(dot + n.q_norm, q);
    k = normed(dot + n.k_norm, k);
  }
  if (a.rotary > 0) {
    q = b.rope(dot + "rope_q", q, a.rotary);
    k = b.rope(dot + "rope_k", k, a.rotary);
  }
  std::vector<int> params;
  for (const std::string& name : a.extra) params.push_back(b.parameter(name, n.module, {a.shape.heads}, Parameter::Kind::kOther));
  const TensorId y = b.attention(n.module, q, k, v, a.shape, std::move(params));
  return y;
}

TensorId self_attention(Builder& b, TensorId x, const SelfAttention& a) {
  const AttentionNames& n = a.names;
  const std::string dot = n.module + ".";
  const std::int64_t hidden = b.width(x);
  const TensorId q = b.linear(dot + n.q, x, a.shape.heads * a.shape.head_dim, a.qkv_bias);
  const TensorId k = b.linear(dot + n.k, x, a.shape.kv_heads * a.shape.head_dim, a.qkv_bias);
  const TensorId v = b.linear(dot + n.v, x, a.shape.kv_heads * a.shape.value_head_dim, a.qkv_bias);
  return b.linear(dot + n.o, attend(b, q, k, v, a), hidden, a.o_bias);
}

std::vector<TensorId> fused_qkv(Builder& b, const std::string& module, TensorId x, const AttentionShape& shape, bool bias) {
  const std::int64_t q = shape.heads * shape.head_dim, k = shape.kv_heads * shape.head_dim, v = shape.kv_heads * shape.value_head_dim;
  const TensorId fused = b.linear(module, x, q + k + v, bias);
  b.fused_targets({"q_proj", "k_proj", "v_proj"});
  return b.split(module + ".split", fused, {q, k, v});
}

TensorId gated_mlp(Builder& b, TensorId x, const Mlp& m) {
  const std::string dot = m.module.empty() ? "" : m.module + ".";
  const std::int64_t hidden = b.width(x);
  const TensorId gate = b.linear(dot + m.gate, x, m.intermediate, m.bias);
  const TensorId up = b.linear(dot + m.up, x, m.intermediate, m.bias);
  return b.linear(dot + m.down, b.gated_activation(dot + "act_fn", gate, up, m.activation), hidden, m.bias);
}

TensorId plain_mlp(Builder& b, TensorId x, const Mlp& m) {
  const std::string dot = m.module.empty() ? "" : m.module + ".";
  const std::int64_t hidden = b.width(x);
  const TensorId up = b.linear(dot + m.up, x, m.intermediate, m.bias);
  return b.linear(dot + m.down, b.activation(dot + "act", up, m.activation), hidden, m.bias);
}

TensorId fused_gated_mlp(Builder& b, TensorId x, const Mlp& m) {
  const std::string dot = m.module.empty() ? "" : m.module + ".";
  const std::int64_t hidden = b.width(x);
  const TensorId both = b.linear(dot + m.up, x, 2 * m.intermediate, m.bias);
  b.fused_targets({"gate_proj", "up_proj"});
  const auto halves = b.split(dot + "chunk", both, {m.intermediate, m.intermediate});
  return b.linear(dot + m.down, b.gated_activation(dot + "act_fn", halves[0], halves[1], m.activation), hidden, m.bias);
}

TensorId mixture(Builder& b, TensorId x, const Moe& m) {
  const MoeShape& s = m.shape;
  const std::int64_t hidden = b.width(x);
  const std::string router = m.module + "." + m.router;
  std::vector<int> params{b.parameter(router + ".weight", router, {s.experts, hidden}, Parameter::Kind::kRouter)};
  if (m.router_bias) params.push_back(b.parameter(router + ".bias", router, {s.experts}, Parameter::Kind::kBias));
  if (m.correction_bias) params.push_back(b.parameter(router + ".e_score_correction_bias", router, {s.experts}, Parameter::Kind::kOther));
  const TensorId weights = b.router(router, x, s, std::move(params));

  const std::string experts = m.module + "." + m.experts;
  std::vector<int> each;
  each.reserve(static_cast<std::size_t>(s.experts) * 3);
  for (std::int64_t e = 0; e < s.experts; ++e) {
    const std::string one = experts + "." + std::to_string(e) + ".";
    const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in) {
      each.push_back(b.parameter(one + name + ".weight", one + name, {out, in}, Parameter::Kind::kExpert));
    };
    if (s.gated) matrix(m.gate, s.intermediate, hidden);
    matrix(m.up, s.intermediate, hidden);
    matrix(m.down, hidden, s.intermediate);
  }
  return b.experts(experts, x, weights, s, std::move(each));
}

MoeShape read_moe(const Config& c, std::int64_t experts, std::int64_t intermediate) {
  MoeShape s;
  s.experts = experts;
  s.top_k = c.size_or({"num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_top_k"}, std::min<std::int64_t>(2, experts), 1, experts);
  s.intermediate = intermediate;
  s.activation = c.activation({"hidden_act", "hidden_activation"}, "silu");
  return s;
}

std::vector<int> sparse_kinds(const Config& c, std::int64_t layers) {
  const std::int64_t step = c.size_or({"decoder_sparse_step"}, 1, 1);
  const auto dense = c.sizes("mlp_only_layers");
  std::vector<int> kinds(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i)
    kinds[static_cast<std::size_t>(i)] = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  return kinds;
}

Block sandwich_layer(const std::string& class_name, const std::string& prefix, std::int64_t hidden, const SelfAttention& attention, const Mlp& mlp) {
  Builder b(class_name, prefix, hidden);
  TensorId x = b.input();
  const TensorId attended = self_attention(b, b.rms_norm("input_layernorm", x), attention);
  x = b.residual(x, b.rms_norm("post_attention_layernorm", attended));
  const TensorId fed = gated_mlp(b, b.rms_norm("pre_feedforward_layernorm", x), mlp);
  x = b.residual(x, b.rms_norm("post_feedforward_layernorm", fed));
  return b.finish(x);
}

Mla read_mla(const Config& c, const Dims& d) {
  Mla a;
  a.heads = d.heads;
  a.q_rank = c.size_or({"q_lora_rank"}, 0, 0);
  a.kv_rank = c.size({"kv_lora_rank"});
  a.nope = c.size({"qk_nope_head_dim"});
  a.rope = c.size({"qk_rope_head_dim"});
  a.value = c.size_or({"v_head_dim"}, d.hidden / d.heads, 1);
  a.dropout = d.attention_dropout;
  a.bias = c.flag_or({"attention_bias"}, false);
  return a;
}

AttentionShape latent_shape(const Mla& a) {
  AttentionShape s;
  s.heads = s.kv_heads = a.heads;
  s.head_dim = a.nope + a.rope;
  s.value_head_dim = a.value;
  s.dropout = a.dropout;
  return s;
}

TensorId latent_attention(Builder& b, TensorId x, const Mla& a) {
  const std::string dot = a.module + ".";
  const std::int64_t hidden = b.width(x), q_width = a.heads * (a.nope + a.rope);
  const TensorId q = a.q_rank > 0 ? b.linear(dot + "q_b_proj", b.rms_norm(dot + "q_a_layernorm", b.linear(dot + "q_a_proj", x, a.q_rank, a.bias)), q_width)
                                  : b.linear(dot + "q_proj", x, q_width);
  const auto q_parts = b.split(dot + "split_q", q, {a.heads * a.nope, a.heads * a.rope});
  const auto compressed = b.split(dot + "split_kv_a", b.linear(dot + "kv_a_proj_with_mqa", x, a.kv_rank + a.rope, a.bias), {a.kv_rank, a.rope});
  const TensorId kv = b.linear(dot + "kv_b_proj", b.rms_norm(dot + "kv_a_layernorm", compressed[0]), a.heads * (a.nope + a.value));
  const auto kv_parts = b.split(dot + "split_kv_b", kv, {a.heads * a.nope, a.heads * a.value});
  const TensorId q_rotated = b.rope(dot + "rope_q", q_parts[1]);
  const TensorId k_rotated = b.rope(dot + "rope_k", compressed[1]);  // one head, given to all
  const TensorId q_full = b.concat(dot + "cat_q", {q_parts[0], q_rotated});
  const TensorId k_full = b.concat(dot + "cat_k", {kv_parts[0], k_rotated}, q_width);
  const TensorId y = b.attention(a.module, q_full, k_full, kv_parts[1], latent_shape(a));
  return b.linear(dot + "o_proj", y, hidden, a.bias);
}

std::int64_t read_labels(const Config& c, std::int64_t fallback) {
  const std::int64_t named = c.count("id2label");
  return c.size_or({"num_labels"}, named > 0 ? named : fallback, 1);
}

VisionDims read_vision(const Config& c, std::int64_t default_image, std::int64_t default_patch) {
  VisionDims v;
  v.hidden = c.size({"hidden_size"});
  v.layers = c.size({"num_hidden_layers"}, kMostLayers);
  v.heads = c.size({"num_attention_heads"}, kMostHeads);
  check_heads(c, v.hidden, v.heads);
  v.intermediate = c.size_or({"intermediate_size"}, 4 * v.hidden, 1);
  v.image = c.size_or({"image_size"}, default_image, 1, 1 << 16);
  v.patch = c.size_or({"patch_size"}, default_patch, 1, 1 << 16);
  v.channels = c.size_or({"num_channels"}, 3, 1, 1024);
  if (v.image < v.patch) throw c.wrong("patch_size", fmt::format("patches of {} do not fit into images of {}", v.patch, v.image), "correct the config.json");
  v.patches = (v.image / v.patch) * (v.image / v.patch);
  v.labels = read_labels(c, 2);
  v.activation = c.activation({"hidden_act"}, "gelu");
  v.attention_dropout = c.probability_or({"attention_probs_dropout_prob"});
  return v;
}

Model begin_vision(const Config& c, const VisionDims& v) {
  Model m;
  m.hidden = v.hidden;
  m.layers = v.layers;
  m.intermediate = v.intermediate;
  m.max_positions = v.patches + 1;
  m.is_causal = false;
  m.norm_epsilon = c.number_or({"layer_norm_eps"}, 1e-12, 0, 1);
  AttentionShape& a = m.attention;
  a.heads = a.kv_heads = v.heads;
  a.head_dim = a.value_head_dim = v.hidden / v.heads;
  a.causal = false;
  a.dropout = v.attention_dropout;
  m.facts["image_tokens"] = static_cast<double>(v.patches + 1);
  m.facts["num_labels"] = static_cast<double>(v.labels);
  return m;
}

void vision_embedding(Model& m, const VisionDims& v, const std::string& module, bool mask_token, double dropout) {
  Builder b("", "", v.channels * v.patch * v.patch);
  const std::string patches = module + ".patch_embeddings.projection";
  const int cls = b.parameter(module + ".cls_token", module, {1, 1, v.hidden}, Parameter::Kind::kOther);
  if (mask_token) b.parameter(module + ".mask_token", module, {1, v.hidden}, Parameter::Kind::kOther);
  const int positions = b.parameter(module + ".position_embeddings", module, {1, v.patches + 1, v.hidden}, Parameter::Kind::kOther);
  const int weight = b.parameter(patches + ".weight", patches, {v.hidden, v.channels, v.patch, v.patch}, Parameter::Kind::kMatrix);
  const int bias = b.parameter(patches + ".bias", patches, {v.hidden}, Parameter::Kind::kBias);
  Op& projection = b.op(OpKind::kPatchEmbedding, patches, {b.input()}, v.hidden, Space::kTokens);
  projection.params = {weight, bias};
  projection.in_features = v.channels * v.patch * v.patch;
  projection.out_features = v.hidden;
  TensorId x = b.concat(module + ".cat", {b.result()}, v.hidden);  // the class token in front
  b.last().params = {cls};
  Op& added = b.op(OpKind::kPositionEmbedding, module + ".position_embeddings", {x}, v.hidden, Space::kTokens);
  added.params = {positions};
  x = b.result();
  x = b.dropout(module + ".dropout", x, dropout);
  m.embedding = b.finish(x);
  m.embedding_parameter = patches + ".weight";
}

}  // namespace shardfit::model
