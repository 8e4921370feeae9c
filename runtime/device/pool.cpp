#include "runtime/device/pool.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "runtime/device/meter.hpp"
#ifdef SHARDFIT_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace shardfit::device {
namespace {

[[noreturn]] void out_of_memory(const std::string& name, std::int64_t bytes) {
  throw Error(
      "out_of_memory", "",
      fmt::format("no memory for {}: {} beside {} allocated already", name, format_bytes(static_cast<double>(bytes)),
                  format_bytes(static_cast<double>(meter().current()))),
      "use more ranks, a smaller micro batch or activation checkpointing", kExitOutOfMemory);
}

}  // namespace

Region::Region(const std::string& name, std::int64_t bytes, Kind kind) : bytes_(bytes), kind_(kind) {
  if (bytes <= 0) return;
  const auto size = static_cast<std::size_t>(bytes);
#ifdef SHARDFIT_WITH_CUDA
  if (kind == Kind::kCuda) {
    if (cudaMalloc(&data_, size) != cudaSuccess) {
      data_ = nullptr;
      out_of_memory(name, bytes);
    }
    cudaMemset(data_, 0, size);
    meter().add(bytes_);
    return;
  }
#endif
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) out_of_memory(name, bytes);
  if (size >= (std::size_t{4} << 20)) ::madvise(base, size, MADV_HUGEPAGE);
  data_ = base;
  meter().add(bytes_);
}

Region::~Region() {
  if (!data_) return;
#ifdef SHARDFIT_WITH_CUDA
  if (kind_ == Kind::kCuda) {
    cudaFree(data_);
    meter().remove(bytes_);
    return;
  }
#endif
  ::munmap(data_, static_cast<std::size_t>(bytes_));
  meter().remove(bytes_);
}

}  // namespace shardfit::device
