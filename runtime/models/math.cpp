#include "runtime/models/math.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "regions/base/error.hpp"
#include "selector/model/model.hpp"

namespace shardfit::models {
namespace {

Error refuse(const std::string& where, const std::string& what) {
  return {"not_supported", where, fmt::format("{} is not supported by shardfit-train yet", what),
          "train a model without it"};
}

double fact(const model::Model& model, const char* name, double otherwise) {
  const auto found = model.facts.find(name);
  return found == model.facts.end() ? otherwise : found->second;
}

// Llama 3.1's rescaling (transformers, modeling_rope_utils.py, _compute_llama3_parameters): long waves are slowed down
// by `factor`, short ones kept, those between interpolated.
double llama3_frequency(const model::Model& model, double frequency) {
  const double factor = fact(model, "rope_factor", 8), low = fact(model, "rope_low_freq_factor", 1),
               high = fact(model, "rope_high_freq_factor", 4);
  const double original = fact(model, "rope_original_max_positions", 8192);
  const double wave = 2 * std::numbers::pi / frequency;
  if (wave > original / low) return frequency / factor;
  if (wave < original / high) return frequency;
  const double smooth = (original / wave - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

std::vector<float> rope_frequencies(const model::Model& model) {
  const int type = static_cast<int>(fact(model, "rope_type", 0));
  if (type != 0 && type != 1 && type != 5) throw refuse("/rope_scaling/rope_type", "this kind of RoPE scaling");
  std::vector<float> frequencies;
  const auto dim = model.attention.head_dim;
  const double theta = model.rope_theta > 0 ? model.rope_theta : 10000;
  for (std::int64_t i = 0; i < dim / 2; ++i) {
    double frequency = 1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(dim));
    if (type == 1) frequency /= fact(model, "rope_factor", 1);
    if (type == 5) frequency = llama3_frequency(model, frequency);
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

void check_operators(const model::Block& block, bool gpt2, Math& math) {
  using model::Activation;
  using model::OpKind;
  std::optional<std::int64_t> window;
  for (const auto& op : block.ops) {
    if (op.kind == OpKind::kAttention) {
      window = op.attention.window;
      if (op.attention.alibi || op.attention.sinks || op.attention.relative_bias || op.attention.cross)
        throw refuse("/model_type", "this kind of attention");
      math.attention_dropout = std::max(math.attention_dropout, op.attention.dropout);
    }
    if (op.kind == OpKind::kDropout) math.residual_dropout = std::max(math.residual_dropout, op.dropout);
    if (op.kind == OpKind::kGatedActivation && op.activation != Activation::kSilu)
      throw refuse("/hidden_act", "an activation other than \"silu\"");
    if (op.kind == OpKind::kActivation && op.activation != Activation::kGeluTanh &&
        op.activation != Activation::kGeluTanhPython)
      throw refuse("/activation_function", "an activation other than \"gelu_new\"");
    if (op.kind == OpKind::kRope && (op.rotary_fraction != 1 || gpt2))
      throw refuse("/partial_rotary_factor", "RoPE over a part of each head");
  }
  math.windows.push_back(window);
}

}  // namespace

Math math_of(const model::Model& model, std::optional<double> dropout) {
  Math math;
  math.geometry = schedule::geometry_of(model);
  math.norm_epsilon = model.norm_epsilon;
  const bool gpt2 = math.geometry.architecture == schedule::Architecture::kGpt2;
  if (!gpt2) {
    if (math.geometry.head_dim % 2 != 0) throw refuse("/head_dim", "an odd head_dim");
    math.inverse_frequencies = rope_frequencies(model);
  }
  std::vector<Math> kinds;
  for (const auto& run : model.body) {
    Math kind;
    check_operators(model.blocks.at(static_cast<std::size_t>(run.block)), gpt2, kind);
    for (std::int64_t i = 0; i < run.count; ++i) math.windows.push_back(kind.windows[0]);
    math.attention_dropout = std::max(math.attention_dropout, kind.attention_dropout);
    math.residual_dropout = std::max(math.residual_dropout, kind.residual_dropout);
  }
  for (const auto& op : model.embedding.ops)
    if (op.kind == model::OpKind::kDropout) math.embedding_dropout = op.dropout;
  if (dropout) math.embedding_dropout = math.attention_dropout = math.residual_dropout = *dropout;
  if (!gpt2) math.embedding_dropout = math.residual_dropout = 0;  // these families have none
  for (double p : {math.embedding_dropout, math.attention_dropout, math.residual_dropout})
    if (!(p >= 0 && p < 1))
      throw Error("out_of_range", "/job/train/dropout", fmt::format("dropout {}; 0 or more, below 1", p), "correct it");
  return math;
}

void fill_rope_table(const Math& math, std::int64_t positions, float* table) {
  const auto half = static_cast<std::int64_t>(math.inverse_frequencies.size());
  for (std::int64_t position = 0; position < positions; ++position)
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * math.inverse_frequencies[static_cast<std::size_t>(i)];
      table[position * 2 * half + i] = std::cos(angle);
      table[position * 2 * half + half + i] = std::sin(angle);
    }
}

}  // namespace shardfit::models
