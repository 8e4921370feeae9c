// The safetensors format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
#pragma once
#include <bit>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/checkpoint/file_layer.hpp"

namespace shardfit::checkpoint {

enum class Storage { kF64, kF32, kF16, kBf16, kI64, kI32, kI16, kI8, kU8, kBool, kU16, kU32, kU64, kF8E4M3, kF8E5M2 };
std::string_view name_of(Storage storage);  // "F32", "BF16", ...
std::int64_t bytes_of(Storage storage);

struct StoredTensor {
  Storage storage = Storage::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  // bytes, relative to the data part
  std::int64_t elements() const;
};

// A file open for reading. The header is taken as hostile: sizes, overlaps, gaps, overflow and unknown types are
// Error{bad_safetensors} naming the file and the tensor. Reading is by pread, safe from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const StoredTensor* find(const std::string& name) const;

  // Elements [first, first + out.size()) of a floating-point tensor as fp32 (F64, F32, F16, BF16). Throws
  // Error{wrong_type} for others.
  void read_fp32(const std::string& name, std::int64_t first, std::span<float> out) const;
  void read_bytes(const std::string& name, std::int64_t first, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t data_begin_ = 0;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to write: `fill(first_byte, out)` gives its bytes piece by piece, in order.
struct TensorToWrite {
  std::string name;
  Storage storage = Storage::kF32;
  std::vector<std::int64_t> shape;
  std::function<void(std::int64_t first_byte, std::span<std::byte> out)> fill;
};

struct Written {
  std::int64_t bytes = 0;
  std::string xxh64;  // of the whole file, 16 hexadecimal digits
};
// Writes and fsyncs one file, tensors in the order given. Holds `buffer_bytes` in memory.
Written write_safetensors(FileLayer& files, const std::filesystem::path& path,
                          const std::vector<TensorToWrite>& tensors,
                          const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
                          std::size_t buffer_bytes = std::size_t{8} << 20);
// A TensorToWrite over fp32 values in memory, stored as `storage` (kF32, kF16, kBf16); `values` must stay alive.
TensorToWrite tensor_of(std::string name, std::vector<std::int64_t> shape, std::span<const float> values,
                        Storage storage = Storage::kF32);

// Rounds to nearest, ties to even; NaN stays NaN. Those of bf16 stand here so that loops over them become vector code.
inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16, quiet_nan = bits >> 16 | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
}
inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t to_fp16(float value);
float from_fp16(std::uint16_t bits);

}  // namespace shardfit::checkpoint
