#include "selector/schedule/activations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"

namespace shardfit::schedule {

void Layout::add(const std::string& name, std::int64_t size) {
  fields.push_back({name, bytes, size});
  bytes += (size + 63) / 64 * 64;
}

std::int64_t Layout::at(const std::string& name) const {
  for (const auto& field : fields)
    if (field.name == name) return field.offset;
  throw std::logic_error("no buffer field named " + name);
}

Geometry geometry_of(const model::Model& model) {
  Geometry geometry;
  geometry.architecture = model.family == "gpt2" ? Architecture::kGpt2 : Architecture::kLlama;
  geometry.hidden = model.hidden;
  geometry.layers = model.block_count();
  geometry.vocabulary = model.vocabulary;
  geometry.max_positions = model.max_positions;
  geometry.heads = model.attention.heads;
  geometry.kv_heads = model.attention.kv_heads > 0 ? model.attention.kv_heads : model.attention.heads;
  geometry.head_dim = model.attention.head_dim;
  geometry.tied = model.tied_embeddings;
  // The width of the feed-forward layer is read from its weights: configs leave it out (GPT-2) or carry several.
  for (const auto& block : model.blocks)
    for (const auto& parameter : block.parameters) {
      if (parameter.name.ends_with("mlp.gate_proj.weight")) geometry.intermediate = parameter.shape.at(0);
      if (parameter.name.ends_with("mlp.c_fc.weight")) geometry.intermediate = parameter.shape.at(1);
      if (parameter.name.ends_with("self_attn.q_norm.weight")) geometry.head_norms = true;
    }
  return geometry;
}

Sizes sizes_of(const model::Model& model, const job::Job& job, const job::Plan& plan) {
  Sizes sizes;
  sizes.geometry = geometry_of(model);
  sizes.precision = precision_of(job);
  sizes.micro_batch = plan.micro_batch;
  sizes.sequence = job.sequence_length;
  if (sizes.sequence < 1)
    throw Error("missing_key", "/job/sequence_length", "sequence_length is not stated",
                "state the tokens of a sequence");
  if (plan.cpus_per_gpu)
    sizes.attention_workers = std::clamp<std::int64_t>(static_cast<std::int64_t>(*plan.cpus_per_gpu), 1, 256);
  const auto tokens = sizes.tokens();
  auto rows =
      std::max<std::int64_t>(kLossTileElements / std::max<std::int64_t>(sizes.geometry.vocabulary, 1) / 16 * 16, 16);
  if (job.loss.chunk_tokens) rows = *job.loss.chunk_tokens;
  else if (job.loss.chunks) rows = (tokens + *job.loss.chunks - 1) / *job.loss.chunks;
  sizes.loss_rows = std::clamp<std::int64_t>(rows, 1, tokens);
  return sizes;
}

std::int64_t attention_tile_bytes(const Sizes& sizes) {
  const auto dim = sizes.geometry.head_dim;
  const auto keys = std::min(kAttentionKeyTile, sizes.sequence);
  // Scores and their gradient, the output (or dQ) tile, row maxima, sums and deltas.
  std::int64_t elements = 2 * kAttentionQueryTile * keys + kAttentionQueryTile * dim + 3 * kAttentionQueryTile;
  if (sizes.precision.compute != job::DType::kFp32)  // fp32 copies of the q, dO, k and v tiles; dK and dV of one head
    elements += 2 * kAttentionQueryTile * dim + 2 * keys * dim + 2 * sizes.sequence * dim;
  return (elements * 4 + 63) / 64 * 64;
}

Layout saved_layout(const Sizes& sizes) {
  const auto& g = sizes.geometry;
  const auto n = sizes.tokens(), w = width_of(sizes.precision.compute);
  Layout layout;
  if (g.architecture == Architecture::kGpt2) {
    layout.add("qkv", n * 3 * g.hidden * w);
    layout.add("attention", n * g.hidden * w);
    layout.add("log_sum", n * g.heads * 4);
    layout.add("middle", n * g.hidden * w);
    layout.add("inner", n * g.intermediate * w);
    layout.add("norm1_stats", n * 2 * 4);
    layout.add("norm2_stats", n * 2 * 4);
    return layout;
  }
  layout.add("q", n * g.query_width() * w);
  layout.add("k", n * g.kv_width() * w);
  layout.add("v", n * g.kv_width() * w);
  if (g.head_norms) {
    layout.add("q_raw", n * g.query_width() * w);
    layout.add("k_raw", n * g.kv_width() * w);
    layout.add("q_stats", n * g.heads * 4);
    layout.add("k_stats", n * g.kv_heads * 4);
  }
  layout.add("attention", n * g.query_width() * w);
  layout.add("log_sum", n * g.heads * 4);
  layout.add("middle", n * g.hidden * w);
  layout.add("gate", n * g.intermediate * w);
  layout.add("up", n * g.intermediate * w);
  layout.add("norm1_stats", n * 4);
  layout.add("norm2_stats", n * 4);
  return layout;
}

Layout forward_layout(const Sizes& sizes) {
  const auto& g = sizes.geometry;
  const auto n = sizes.tokens(), w = width_of(sizes.precision.compute);
  Layout layout;
  layout.add("normed", n * g.hidden * w);
  layout.add("activated", n * g.intermediate * w);
  layout.add("tiles", sizes.attention_workers * attention_tile_bytes(sizes));
  return layout;
}

// Two phases share the room: the feed-forward layer's gradients are dead before attention's are born. "normed" and
// "flow" (the gradient on its way into a norm) live through both.
Layout backward_layout(const Sizes& sizes) {
  const auto& g = sizes.geometry;
  const auto n = sizes.tokens(), w = width_of(sizes.precision.compute);
  Layout layout;
  layout.add("normed", n * g.hidden * w);
  layout.add("flow", n * g.hidden * w);
  const auto shared = layout.bytes;
  Layout feed = layout, attention = layout;
  feed.add("activated", n * g.intermediate * w);
  feed.add("d_activated", n * g.intermediate * w);
  if (g.architecture == Architecture::kLlama) feed.add("d_gate", n * g.intermediate * w);
  attention.add("d_attention", n * g.query_width() * w);
  if (g.architecture == Architecture::kGpt2) {
    attention.add("d_qkv", n * 3 * g.hidden * w);
  } else {
    attention.add("d_q", n * g.query_width() * w);
    attention.add("d_k", n * g.kv_width() * w);
    attention.add("d_v", n * g.kv_width() * w);
  }
  attention.add("delta", n * g.heads * 4);
  attention.add("tiles", sizes.attention_workers * attention_tile_bytes(sizes));
  for (auto* part : {&feed, &attention})
    for (const auto& field : part->fields)
      if (field.offset >= shared) layout.fields.push_back(field);
  layout.bytes = std::max(feed.bytes, attention.bytes);
  return layout;
}

Layout loss_layout(const Sizes& sizes) {
  const auto& g = sizes.geometry;
  const auto w = width_of(sizes.precision.compute), rows = sizes.loss_rows;
  Layout layout;
  layout.add("normed", rows * g.hidden * w);
  layout.add("flow", rows * g.hidden * w);
  layout.add("stats", rows * 2 * 4);
  layout.add("row_loss", rows * 4);
  layout.add("logits", rows * g.vocabulary * w);
  if (sizes.precision.compute != sizes.precision.gradients)
    layout.add("weight_tile", std::min(kWeightTileRows, g.vocabulary) * g.hidden * w);
  return layout;
}

}  // namespace shardfit::schedule
