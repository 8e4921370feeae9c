#include "runtime/checkpoint/xxh64.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace shardfit::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                        kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

std::uint64_t read64(const std::byte* from) {
  std::uint64_t value;
  std::memcpy(&value, from, 8);
  return value;
}
std::uint32_t read32(const std::byte* from) {
  std::uint32_t value;
  std::memcpy(&value, from, 4);
  return value;
}
std::uint64_t round(std::uint64_t lane, std::uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

}  // namespace

Xxh64::Xxh64(std::uint64_t seed)
    : lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1}, rest_{}, seed_(seed) {}

void Xxh64::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  const auto stripe = [this](const std::byte* from) {
    for (std::size_t i = 0; i < 4; ++i) lanes_[i] = round(lanes_[i], read64(from + 8 * i));
  };
  if (rest_size_ > 0) {
    const std::size_t taken = std::min(bytes.size(), rest_.size() - rest_size_);
    std::copy_n(bytes.begin(), taken, rest_.begin() + static_cast<std::ptrdiff_t>(rest_size_));
    rest_size_ += taken;
    bytes = bytes.subspan(taken);
    if (rest_size_ < rest_.size()) return;
    stripe(rest_.data());
    rest_size_ = 0;
  }
  for (; bytes.size() >= 32; bytes = bytes.subspan(32)) stripe(bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
  rest_size_ = bytes.size();
}

std::uint64_t Xxh64::digest() const {
  std::uint64_t hash = seed_ + kPrime5;
  if (total_ >= 32) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  std::size_t at = 0;
  for (; at + 8 <= rest_size_; at += 8)
    hash = std::rotl(hash ^ round(0, read64(rest_.data() + at)), 27) * kPrime1 + kPrime4;
  for (; at + 4 <= rest_size_; at += 4)
    hash = std::rotl(hash ^ read32(rest_.data() + at) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; at < rest_size_; ++at) hash = std::rotl(hash ^ static_cast<std::uint64_t>(rest_[at]) * kPrime5, 11) * kPrime1;
  hash ^= hash >> 33;
  hash *= kPrime2;
  hash ^= hash >> 29;
  hash *= kPrime3;
  return hash ^ hash >> 32;
}

std::string Xxh64::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  std::uint64_t value = digest();
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4) *digit = kDigits[value & 15];
  return text;
}

}  // namespace shardfit::checkpoint
