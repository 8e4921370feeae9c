#include "selector/model/builder.hpp"

#include <fmt/format.h>
#include <utility>

#include "regions/base/error.hpp"
#include "selector/model/config.hpp"

namespace shardfit::model {

Builder::Builder(std::string class_name, std::string prefix, std::int64_t input_width, Space space) {
  block_.class_name = std::move(class_name);
  block_.prefix = std::move(prefix);
  block_.tensors.push_back({"input", input_width, space});
}

TensorId Builder::tensor(std::string name, std::int64_t width, Space space) {
  if (width < 1 || width > kMostParameters)
    throw Error("out_of_range", "", fmt::format("{} of {} would be {} wide", name, block_.class_name, width), "correct the sizes in config.json");
  block_.tensors.push_back({std::move(name), width, space});
  return static_cast<TensorId>(block_.tensors.size()) - 1;
}

TensorId Builder::external(std::string name, std::int64_t width, Space space) { return tensor(std::move(name), width, space); }

int Builder::parameter(std::string name, std::string module, std::vector<std::int64_t> shape, Parameter::Kind kind) {
  std::int64_t elements = 1;
  for (auto d : shape)
    if (d < 1 || __builtin_mul_overflow(elements, d, &elements) || elements > kMostParameters)
      throw Error("out_of_range", "", fmt::format("the parameter {} would have an impossible size ({})", name, fmt::join(shape, " x ")),
                  "correct the sizes in config.json");
  block_.parameters.push_back({std::move(name), std::move(module), std::move(shape), kind});
  return static_cast<int>(block_.parameters.size()) - 1;
}

Op& Builder::op(OpKind kind, const std::string& module, std::vector<TensorId> in, std::int64_t out_width, Space where) {
  const TensorId out = tensor(module, out_width, where);
  Op& op = block_.ops.emplace_back();
  op.kind = kind;
  op.module = module;
  op.in = std::move(in);
  op.outs = {out};
  return op;
}

TensorId Builder::simple(OpKind kind, const std::string& name, std::vector<TensorId> in) {
  const TensorId first = in.front();
  op(kind, name, std::move(in), width(first), space(first));
  return result();
}

TensorId Builder::embedding(const std::string& module, TensorId ids, std::int64_t rows, std::int64_t width) {
  const int table = parameter(module + ".weight", module, {rows, width}, Parameter::Kind::kEmbedding);
  op(OpKind::kEmbedding, module, {ids}, width, space(ids)).params = {table};
  return result();
}

TensorId Builder::position_embedding(const std::string& module, TensorId x, std::int64_t rows) {
  const int table = parameter(module + ".weight", module, {rows, width(x)}, Parameter::Kind::kEmbedding);
  const TensorId y = simple(OpKind::kPositionEmbedding, module, {x});
  last().params = {table};
  return y;
}

TensorId Builder::linear(const std::string& module, TensorId x, std::int64_t out, bool bias) {
  const std::int64_t in = width(x);
  std::vector<int> params{parameter(module + ".weight", module, {out, in}, Parameter::Kind::kMatrix)};
  if (bias) params.push_back(parameter(module + ".bias", module, {out}, Parameter::Kind::kBias));
  Op& o = op(OpKind::kLinear, module, {x}, out, space(x));
  o.params = std::move(params);
  o.in_features = in;
  o.out_features = out;
  return result();
}

TensorId Builder::conv1d(const std::string& module, TensorId x, std::int64_t out) {
  const TensorId y = linear(module, x, out, true);
  std::vector<std::int64_t>& shape = block_.parameters[block_.parameters.size() - 2].shape;
  std::swap(shape[0], shape[1]);
  last().transposed_weight = true;
  return y;
}

TensorId Builder::tied_linear(const std::string& module, TensorId x, std::int64_t out, const std::string& bias_name) {
  std::vector<int> params;
  if (!bias_name.empty()) params.push_back(parameter(bias_name, module, {out}, Parameter::Kind::kBias));
  Op& o = op(OpKind::kLinear, module, {x}, out, space(x));
  o.params = std::move(params);
  o.in_features = width(x);
  o.out_features = out;
  return result();
}

TensorId Builder::rms_norm(const std::string& module, TensorId x, std::int64_t group, bool weight) {
  if (group == 0) group = width(x);
  const TensorId y = simple(OpKind::kNorm, module, {x});
  last().group = group;
  last().rms = true;
  if (weight) last().params = {parameter(module + ".weight", module, {group}, Parameter::Kind::kNorm)};
  return y;
}

TensorId Builder::layer_norm(const std::string& module, TensorId x, bool bias, std::int64_t group) {
  if (group == 0) group = width(x);
  const TensorId y = simple(OpKind::kNorm, module, {x});
  last().group = group;
  last().params = {parameter(module + ".weight", module, {group}, Parameter::Kind::kNorm)};
  if (bias) last().params.push_back(parameter(module + ".bias", module, {group}, Parameter::Kind::kBias));
  return y;
}

TensorId Builder::rope(const std::string& name, TensorId x, double fraction) {
  const TensorId y = simple(OpKind::kRope, name, {x});
  last().rotary_fraction = fraction;
  return y;
}

TensorId Builder::attention(const std::string& module, TensorId q, TensorId k, TensorId v, const AttentionShape& shape, std::vector<int> params) {
  Op& o = op(OpKind::kAttention, module, {q, k, v}, shape.heads * shape.value_head_dim, space(q));
  o.attention = shape;
  o.params = std::move(params);
  return result();
}

TensorId Builder::activation(const std::string& name, TensorId x, Activation kind) {
  const TensorId y = simple(OpKind::kActivation, name, {x});
  last().activation = kind;
  return y;
}

TensorId Builder::gated_activation(const std::string& name, TensorId gate, TensorId up, Activation kind) {
  const TensorId y = simple(OpKind::kGatedActivation, name, {gate, up});
  last().activation = kind;
  return y;
}

TensorId Builder::multiply(const std::string& name, TensorId a, TensorId b) { return simple(OpKind::kMultiply, name, {a, b}); }

TensorId Builder::add(const std::string& name, TensorId a, TensorId b) { return simple(OpKind::kAdd, name, {a, b}); }

TensorId Builder::residual(TensorId x, TensorId branch) {
  const TensorId y = simple(OpKind::kAdd, "residual", {x, branch});
  last().is_residual = true;
  return y;
}

TensorId Builder::scale(const std::string& name, TensorId x, std::vector<int> params) {
  const TensorId y = simple(OpKind::kScale, name, {x});
  last().params = std::move(params);
  return y;
}

TensorId Builder::dropout(const std::string& module, TensorId x, double p) {
  const TensorId y = simple(OpKind::kDropout, module, {x});
  last().dropout = p;
  return y;
}

TensorId Builder::concat(const std::string& name, const std::vector<TensorId>& parts, std::int64_t total) {
  if (total == 0)
    for (TensorId part : parts) total += width(part);
  op(OpKind::kConcat, name, parts, total, space(parts.front()));
  return result();
}

std::vector<TensorId> Builder::split(const std::string& name, TensorId x, const std::vector<std::int64_t>& widths) {
  std::vector<TensorId> outs;
  for (auto w : widths) outs.push_back(tensor(name, w, space(x)));
  Op& o = block_.ops.emplace_back();
  o.kind = OpKind::kSplit;
  o.module = name;
  o.in = {x};
  o.outs = outs;
  return outs;
}

TensorId Builder::router(const std::string& module, TensorId x, const MoeShape& shape, std::vector<int> params) {
  Op& o = op(OpKind::kRouter, module, {x}, shape.top_k, space(x));
  o.params = std::move(params);
  o.in_features = width(x);
  o.out_features = shape.experts;
  o.moe = shape;
  return result();
}

TensorId Builder::experts(const std::string& module, TensorId x, TensorId weights, const MoeShape& shape, std::vector<int> params) {
  Op& o = op(OpKind::kExperts, module, {x, weights}, width(x), space(x));
  o.params = std::move(params);
  o.in_features = width(x);
  o.out_features = shape.intermediate;
  o.moe = shape;
  return result();
}

TensorId Builder::pooler(const std::string& module, TensorId x) {
  const std::int64_t w = width(x);
  std::vector<int> params{parameter(module + ".weight", module, {w, w}, Parameter::Kind::kMatrix),
                          parameter(module + ".bias", module, {w}, Parameter::Kind::kBias)};
  Op& o = op(OpKind::kPooler, module, {x}, w, Space::kSequences);
  o.params = std::move(params);
  o.in_features = o.out_features = w;
  o.activation = Activation::kTanh;
  return result();
}

TensorId Builder::first_token(TensorId x) {
  op(OpKind::kSplit, "first_token", {x}, width(x), Space::kSequences);
  return result();
}

Block Builder::finish(TensorId output) {
  block_.output = output;
  return std::move(block_);
}

}  // namespace shardfit::model
