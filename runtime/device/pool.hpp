// The run's own memory: one zeroed, page-aligned region a buffer, allocated once and counted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace shardfit::device {

inline constexpr int kExitOutOfMemory = 12;

enum class Kind { kCpu, kCuda };

class Region {
 public:
  Region() = default;
  // Throws Error{out_of_memory, exit 12} naming `name` and the bytes.
  Region(const std::string& name, std::int64_t bytes, Kind kind = Kind::kCpu);
  Region(Region&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), kind_(other.kind_) {}
  Region& operator=(Region&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
    return *this;
  }
  ~Region();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  char* bytes_at(std::int64_t offset) const { return static_cast<char*>(data_) + offset; }
  std::int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Kind kind_ = Kind::kCpu;
};

}  // namespace shardfit::device
