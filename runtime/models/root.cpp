#include "runtime/models/root.hpp"

#include <algorithm>
#include <stdexcept>

#include "runtime/kernels/kernels.hpp"

namespace shardfit::models {

using kernels::LinearShape;
using kernels::NormShape;

Root::Root(const Math& math, const schedule::Sizes& sizes, const schedule::Unit& root, const Names& names,
           kernels::Kernels& kernels)
    : math_(math), sizes_(sizes), kernels_(kernels), layout_(schedule::loss_layout(sizes)) {
  embedding_ = offset(root, names.embedding);
  embedding_elements_ = root.find(names.embedding)->elements;
  if (!names.positions.empty()) {
    positions_ = offset(root, names.positions);
    position_elements_ = root.find(names.positions)->elements;
  }
  norm_weight_ = offset(root, names.norm_weight);
  if (!names.norm_bias.empty()) norm_bias_ = offset(root, names.norm_bias);
  head_ = math.geometry.tied ? embedding_ : offset(root, names.head);
}

std::int64_t Root::offset(const schedule::Unit& unit, const std::string& name, bool optional) {
  if (const auto* slice = unit.find(name)) return slice->offset;
  if (optional) return -1;
  throw std::logic_error("no parameter " + name + " in " + unit.name);
}

kernels::Dropout Root::dropout(double probability, const StepContext& context, int block, int place) const {
  if (!context.training || probability <= 0) return {};
  const auto at = static_cast<std::uint64_t>(block + 1) * 16 + static_cast<std::uint64_t>(place);
  return {probability, kernels::mix(kernels::mix(context.seed, static_cast<std::uint64_t>(context.step)), at)};
}

void Root::embed(const Flat& weights, const Batch& batch, const StepContext& context, void* out) {
  const auto width = math_.geometry.hidden;
  kernels_.embedding(weights.at(embedding_), batch.ids, out, rows(), width, false);
  if (positions_ >= 0) kernels_.embedding(weights.at(positions_), batch.positions, out, rows(), width, true);
  kernels_.dropout(out, rows(), width, sizes_.sequence, batch.samples,
                   dropout(math_.embedding_dropout, context, -1, 0));
}

void Root::embed_backward(const Flat& gradients, const Batch& batch, const StepContext& context, void* d_out,
                          bool accumulate) {
  const auto width = math_.geometry.hidden, type_width = kernels::width_of(gradients.type);
  kernels_.dropout(d_out, rows(), width, sizes_.sequence, batch.samples,
                   dropout(math_.embedding_dropout, context, -1, 0));
  // A tied table holds the output projection's gradient already.
  if (!accumulate && !math_.geometry.tied)
    kernels_.fill_zero(gradients.at(embedding_), embedding_elements_ * type_width);
  kernels_.embedding_backward(d_out, batch.ids, rows(), width, gradients.at(embedding_), gradients.type);
  if (positions_ < 0) return;
  if (!accumulate) kernels_.fill_zero(gradients.at(positions_), position_elements_ * type_width);
  kernels_.embedding_backward(d_out, batch.positions, rows(), width, gradients.at(positions_), gradients.type);
}

void Root::final_norm(const Flat& weights, const void* stream, std::int64_t first, std::int64_t rows, char* scratch) {
  const auto width = math_.geometry.hidden;
  const NormShape shape{rows, width, math_.norm_epsilon};
  const auto* x = static_cast<const char*>(stream) + first * width * kernels::width_of(kernels_.type());
  auto* stats = reinterpret_cast<float*>(scratch + layout_.at("stats"));
  void* normed = scratch + layout_.at("normed");
  if (norm_bias_ >= 0) kernels_.layer_norm(shape, x, weights.at(norm_weight_), weights.at(norm_bias_), normed, stats);
  else kernels_.rms_norm(shape, x, weights.at(norm_weight_), normed, stats);
}

const void* Root::logits(const Flat& weights, const void* stream, std::int64_t first, std::int64_t rows,
                         char* scratch) {
  final_norm(weights, stream, first, rows, scratch);
  const LinearShape shape{rows, math_.geometry.hidden, math_.geometry.vocabulary};
  void* out = scratch + layout_.at("logits");
  kernels_.linear(shape, scratch + layout_.at("normed"), weights.at(head_), nullptr, out);
  return out;
}

double Root::loss(const Flat& weights, const Flat* gradients, const Batch& batch, const void* stream, void* d_stream,
                  char* scratch, const double* scale, bool accumulate) {
  const auto width = math_.geometry.hidden, vocabulary = math_.geometry.vocabulary;
  const bool tiled = gradients && gradients->type != kernels_.type();
  double total = 0;
  for (std::int64_t first = 0; first < rows(); first += sizes_.loss_rows) {
    const auto n = std::min(sizes_.loss_rows, rows() - first);
    void* scores = const_cast<void*>(logits(weights, stream, first, n, scratch));
    auto* row_loss = reinterpret_cast<float*>(scratch + layout_.at("row_loss"));
    kernels_.cross_entropy(scores, batch.targets + first, n, vocabulary, row_loss, scale);
    total += kernels_.sum(row_loss, n);
    if (!scale) continue;
    const LinearShape shape{n, width, vocabulary};
    void *normed = scratch + layout_.at("normed"), *flow = scratch + layout_.at("flow");
    const auto* stats = reinterpret_cast<const float*>(scratch + layout_.at("stats"));
    const auto at = first * width * kernels::width_of(kernels_.type());
    const bool add = accumulate || first > 0;
    kernels_.linear_backward_weight(
        shape, scores, normed, gradients->at(head_), gradients->type, nullptr, add,
        tiled ? scratch + layout_.at("weight_tile") : nullptr,
        tiled ? std::min(schedule::kWeightTileRows, vocabulary) * width * kernels::width_of(kernels_.type()) : 0);
    kernels_.linear_backward_input(shape, scores, weights.at(head_), flow, false);
    const NormShape norm{n, width, math_.norm_epsilon};
    const auto* x = static_cast<const char*>(stream) + at;
    auto* dx = static_cast<char*>(d_stream) + at;
    if (norm_bias_ >= 0)
      kernels_.layer_norm_backward(norm, flow, x, weights.at(norm_weight_), stats, dx, false,
                                   gradients->at(norm_weight_), gradients->at(norm_bias_), gradients->type, add);
    else
      kernels_.rms_norm_backward(norm, flow, x, weights.at(norm_weight_), stats, dx, false, gradients->at(norm_weight_),
                                 gradients->type, add);
  }
  return total;
}

std::unique_ptr<Family> make_family(const Math& math, const schedule::Sizes& sizes,
                                    const std::vector<schedule::Unit>& units, kernels::Kernels& kernels,
                                    const float* rope_table) {
  if (math.geometry.architecture == schedule::Architecture::kGpt2) return make_gpt2(math, sizes, units, kernels);
  return make_llama(math, sizes, units, kernels, rope_table);
}

}  // namespace shardfit::models
