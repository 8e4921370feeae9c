#include "runtime/device/meter.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

namespace shardfit::device {
namespace {

constexpr std::size_t kAlign = 64;

// The size stands in the cache line before the data.
void release(void* data) {
  if (!data) return;
  auto* base = static_cast<char*>(data) - kAlign;
  std::int64_t bytes;
  std::memcpy(&bytes, base, sizeof bytes);
  meter().remove(bytes);
  std::free(base);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    void* base = nullptr;
    if (::posix_memalign(&base, kAlign, bytes + kAlign) != 0) throw std::bad_alloc();
    const auto counted = static_cast<std::int64_t>(bytes);
    std::memcpy(base, &counted, sizeof counted);
    meter().add(counted);
    auto* data = static_cast<char*>(base) + kAlign;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

std::int64_t status_kib(const char* key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == key) {
      std::int64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  return 0;
}

}  // namespace

Meter& meter() {
  static Meter one;
  return one;
}

void install_counting_allocator() {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 255);
}

std::int64_t resident_bytes() { return status_kib("VmRSS:"); }
std::int64_t resident_peak_bytes() { return status_kib("VmHWM:"); }

}  // namespace shardfit::device
