// Nemotron-H (modeling_nemotron_h.py of its repository): every layer is one of Mamba-2 (M), attention (*) or MLP (-), as
// hybrid_override_pattern spells. Mamba-2: arXiv 2405.21060.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

namespace {

TensorId mamba(Builder& b, TensorId x, const SsmShape& s, bool bias, bool conv_bias) {
  const std::int64_t conv = s.inner + 2 * s.groups * s.state;
  const auto vector = [&](const char* name) { return b.parameter(std::string("mixer.") + name, "mixer", {s.heads}, Parameter::Kind::kOther); };
  const std::int64_t hidden = b.width(x);
  const std::vector<int> state{vector("dt_bias"), vector("A_log"), vector("D")};
  const auto parts = b.split("mixer.split", b.linear("mixer.in_proj", x, s.inner + conv + s.heads, bias), {s.inner, conv, s.heads});
  std::vector<int> kernel{b.parameter("mixer.conv1d.weight", "mixer.conv1d", {conv, 1, s.conv_kernel}, Parameter::Kind::kOther)};
  if (conv_bias) kernel.push_back(b.parameter("mixer.conv1d.bias", "mixer.conv1d", {conv}, Parameter::Kind::kBias));
  Op& convolution = b.op(OpKind::kConvolution, "mixer.conv1d", {parts[1]}, conv, Space::kTokens);
  convolution.params = std::move(kernel);
  convolution.activation = Activation::kSilu;
  convolution.ssm = s;
  const TensorId mixed = b.result();
  Op& scan = b.op(OpKind::kSsm, "mixer", {mixed, parts[2]}, s.inner, Space::kTokens);
  scan.params = state;
  scan.ssm = s;
  const TensorId gated = b.gated_activation("mixer.norm.gate", parts[0], b.result(), Activation::kSilu);
  Op& norm = b.op(OpKind::kNorm, "mixer.norm", {gated}, s.inner, Space::kTokens);
  norm.rms = true;
  norm.group = s.inner / s.groups;
  const TensorId normed = b.result();
  b.last().params = {b.parameter("mixer.norm.weight", "mixer.norm", {s.inner}, Parameter::Kind::kNorm)};
  return b.linear("mixer.out_proj", normed, hidden, bias);
}

}  // namespace

Model build_nemotron_h(const Config& c) {
  Dims d = read_dims(c, false);
  d.head_dim = c.size_or({"attention_head_dim", "head_dim"}, 128, 1);
  Model m = begin(c, d);
  SsmShape s;
  s.heads = c.size_or({"mamba_num_heads"}, 128, 1, kMostHeads);
  s.head_dim = c.size_or({"mamba_head_dim"}, 64, 1, 1 << 16);
  s.state = c.size_or({"ssm_state_size"}, 128, 1, 1 << 16);
  s.groups = c.size_or({"n_groups"}, 8, 1, 1 << 12);
  s.conv_kernel = c.size_or({"conv_kernel"}, 4, 1, 1 << 10);
  s.chunk = c.size_or({"chunk_size"}, 128, 1, 1 << 20);
  s.inner = s.heads * s.head_dim;
  if (s.inner % s.groups != 0) throw c.wrong("n_groups", "\"n_groups\" does not divide mamba_num_heads x mamba_head_dim", "correct the config.json");

  const std::string pattern = c.word_or({"hybrid_override_pattern"}, "");
  if (static_cast<std::int64_t>(pattern.size()) != d.layers)
    throw c.wrong("hybrid_override_pattern", "\"hybrid_override_pattern\" names " + std::to_string(pattern.size()) + " layers, num_hidden_layers is " + std::to_string(d.layers),
                  "correct the config.json");
  if (pattern.find_first_not_of("M*-") != std::string::npos)
    throw c.wrong("hybrid_override_pattern", "\"hybrid_override_pattern\" may hold M, * and - only", "correct the config.json");

  SelfAttention attention{attention_shape(d), {.module = "mixer"}};
  attention.rotary = 0;
  attention.qkv_bias = attention.o_bias = c.flag_or({"attention_bias"}, false);
  const Mlp mlp{.module = "mixer", .intermediate = d.intermediate, .activation = c.activation({"mlp_hidden_act"}, "relu2"), .bias = c.flag_or({"mlp_bias"}, false)};
  const bool bias = c.flag_or({"use_bias", "mamba_proj_bias"}, false), conv_bias = c.flag_or({"use_conv_bias"}, true);

  token_embedding(m, {.table = "backbone.embeddings"});
  layers_by_kind(m, std::vector<int>(pattern.begin(), pattern.end()), [&](int kind) {
    Builder b("NemotronHBlock", "backbone.layers.{}", d.hidden);
    const TensorId x = b.input(), n = b.rms_norm("norm", x);
    const TensorId y = kind == 'M' ? mamba(b, n, s, bias, conv_bias) : kind == '*' ? self_attention(b, n, attention) : plain_mlp(b, n, mlp);
    return b.finish(b.residual(x, y));
  });
  language_head(m, {.norm = "backbone.norm_f"});
  return m;
}

}  // namespace shardfit::model
