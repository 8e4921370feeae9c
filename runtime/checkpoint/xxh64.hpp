// XXH64, the checksum of checkpoint files (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), over bytes that come piece
// by piece.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace shardfit::checkpoint {

class Xxh64 {
 public:
  explicit Xxh64(std::uint64_t seed = 0);
  void update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;
  std::string hex() const;  // 16 lower-case digits

 private:
  std::array<std::uint64_t, 4> lanes_;
  std::array<std::byte, 32> rest_;
  std::size_t rest_size_ = 0;
  std::uint64_t total_ = 0, seed_;
};

}  // namespace shardfit::checkpoint
