#include "runtime/engine/draw.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/kernels/kernels.hpp"
#include "selector/schedule/units.hpp"

namespace shardfit::engine {
namespace {

std::uint64_t hash_of(const std::string& name) {  // FNV-1a
  std::uint64_t hash = 14695981039346656037ULL;
  for (unsigned char c : name) hash = (hash ^ c) * 1099511628211ULL;
  return hash;
}

}  // namespace

void draw_parameter(std::uint64_t seed, const schedule::Slice& slice, double range, std::int64_t layers,
                    std::int64_t first, std::span<float> out) {
  if (slice.shape.size() < 2) {  // norms scale by 1, biases are 0
    std::fill(out.begin(), out.end(), slice.name.ends_with("bias") ? 0.0f : 1.0f);
    return;
  }
  double deviation = range;
  if (slice.name.ends_with("c_proj.weight")) deviation /= std::sqrt(2.0 * static_cast<double>(layers));
  const auto key = kernels::mix(seed, hash_of(slice.name));
  for (std::size_t i = 0; i < out.size(); ++i) {  // Box and Muller's transform, one draw an element
    const auto bits = kernels::mix(key, static_cast<std::uint64_t>(first) + i);
    const double u = (static_cast<double>(bits >> 32) + 0.5) / 4294967296.0,
                 v = static_cast<double>(bits & 0xffffffffU) / 4294967296.0;
    out[i] = static_cast<float>(deviation * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
  }
}

}  // namespace shardfit::engine
