// What a rank has allocated, to the byte: LibTorch's allocations, the run's own buffers and mapped files.
#pragma once
#include <atomic>
#include <cstdint>

namespace shardfit::device {

class Meter {
 public:
  void add(std::int64_t bytes) noexcept {
    const auto now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    auto seen = peak_.load(std::memory_order_relaxed);
    while (now > seen && !peak_.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }
  void remove(std::int64_t bytes) noexcept { current_.fetch_sub(bytes, std::memory_order_relaxed); }
  std::int64_t current() const noexcept { return current_.load(std::memory_order_relaxed); }
  std::int64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() noexcept { peak_.store(current(), std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> current_{0}, peak_{0};
};

// The process's meter. install_counting_allocator() makes LibTorch's CPU allocations count; call it first in main.
Meter& meter();
void install_counting_allocator();

// Resident bytes of the process now and at most (VmRSS, VmHWM of /proc/self/status); 0 where they cannot be read.
std::int64_t resident_bytes();
std::int64_t resident_peak_bytes();

}  // namespace shardfit::device
