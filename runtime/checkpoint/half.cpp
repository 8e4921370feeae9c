// fp16 by its bits.
#include <bit>
#include <cmath>

#include "runtime/checkpoint/safetensors.hpp"

namespace shardfit::checkpoint {

std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00;
  if (magnitude >= 0x47800000u) return sign | 0x7C00;  // 65536 and more: infinity
  if (magnitude < 0x33000000u) return sign;            // below half of the least subnormal
  if (magnitude < 0x38800000u) {                       // subnormal: value x 2^24, rounded
    const float scaled = std::nearbyint(std::bit_cast<float>(magnitude) * 16777216.0f);
    return sign | static_cast<std::uint16_t>(scaled);
  }
  const std::uint32_t rebased = magnitude - 0x38000000u;  // exponent bias 127 -> 15
  return sign |
         static_cast<std::uint16_t>((rebased + 0xFFF + (rebased >> 13 & 1)) >> 13);  // may carry into infinity, rightly
}

float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) / 16777216.0f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

}  // namespace shardfit::checkpoint
