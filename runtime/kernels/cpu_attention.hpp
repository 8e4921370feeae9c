// Causal attention on the CPU, tile by tile: scores are never whole. Each document of the micro batch attends to itself
// only.
#pragma once
#include <cstdint>

#include "runtime/kernels/kernels.hpp"
#include "runtime/kernels/loops.hpp"

namespace shardfit::kernels {

inline constexpr std::int64_t kQueryTile = 64, kKeyTile = 512;

// `tiles`: shape.workers scratch areas of shape.tile_bytes, each at least selector/schedule's attention_tile_bytes.
template <typename T>
void attention_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* out, float* log_sum,
                       void* tiles);
template <typename T>
void attention_backward(const AttentionShape& shape, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                        const float* log_sum, float* delta, T* dq, T* dk, T* dv, void* tiles);

// A random draw of 64 bits below this is a dropped element.
std::uint64_t drop_limit(double probability);

}  // namespace shardfit::kernels
