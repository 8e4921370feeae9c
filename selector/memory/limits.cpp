#include "selector/memory/limits.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "regions/base/error.hpp"

namespace shardfit::memory {
namespace {

constexpr double kMostBytes = 1152921504606846976.0;  // 2^60
constexpr double kBytesEach = 32;                     // an element with copies, gradient and temporaries

// Bytes of one block's tensors for the tokens of one micro batch.
double block_bytes(const Setup& s, const model::Block& block, double tokens, double positions) {
  double elements = 0;
  for (const auto& t : block.tensors) elements += static_cast<double>(t.width) * tokens;
  for (const auto& op : block.ops) {
    if (op.kind == model::OpKind::kAttention && s.eager_attention) elements += static_cast<double>(op.attention.heads) * tokens * positions;
    if (op.kind == model::OpKind::kExperts)
      elements += tokens * static_cast<double>(op.moe.top_k) * 4 * static_cast<double>(op.moe.intermediate + op.in_features) + tokens * static_cast<double>(op.moe.experts);
  }
  return elements * kBytesEach;
}

}  // namespace

void check_sizes(const Setup& s) {
  const double positions = static_cast<double>(std::max(s.sequence, s.decoder_sequence)) * static_cast<double>(s.cp);
  const double tokens = static_cast<double>(s.micro_batch) * positions;
  double bytes = block_bytes(s, s.model.embedding, tokens, positions) + block_bytes(s, s.model.head, tokens, positions);
  double heaviest = 0;
  for (const auto& block : s.model.blocks) heaviest = std::max(heaviest, block_bytes(s, block, tokens, positions));
  bytes += heaviest * static_cast<double>(std::max<std::int64_t>(1, s.model.block_count()));
  // Micro batches in flight: as many as stages, all of a step under GPipe.
  if (s.pp > 1) bytes *= std::max(static_cast<double>(s.pp) * static_cast<double>(s.vp), static_cast<double>(s.accumulation)) * 2 + 1;
  else bytes *= 2;
  if (bytes > kMostBytes)
    throw Error("out_of_range", "/job/sequence_length",
                fmt::format("{} sequences of {} tokens a micro batch would make {:.0e} bytes of tensors, more than 2^60", s.micro_batch, positions, bytes),
                "correct sequence_length or micro_batch");
  double adapters = 0;
  if (s.adapters.any)
    for (const auto& block : s.model.blocks)
      for (const auto& op : block.ops) adapters += static_cast<double>(s.adapters.rank) * static_cast<double>(op.in_features + op.out_features) * static_cast<double>(s.model.block_count());
  if (adapters * kBytesEach > kMostBytes)
    throw Error("out_of_range", "/job/method/rank", fmt::format("adapters of rank {} would make more than 2^60 bytes", s.adapters.rank), "correct the rank");
}

}  // namespace shardfit::memory
