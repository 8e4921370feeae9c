#include "runtime/comm/nccl/nccl.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "regions/base/error.hpp"
#include "runtime/comm/world.hpp"
#include "runtime/device/pool.hpp"

namespace shardfit::comm {
namespace {

ncclDataType_t nccl_type(Type type) {
  return type == Type::kFp32 ? ncclFloat32 : type == Type::kBf16 ? ncclBfloat16 : ncclUint8;
}

class Nccl final : public Collective {
 public:
  Nccl(World& world, std::int64_t stage_bytes)
      : Collective(world.rank(), world.ranks()),
        world_(world),
        stage_("NCCL staging", stage_bytes, device::Kind::kCuda) {
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id));
    static_assert(sizeof id.internal == NCCL_UNIQUE_ID_BYTES);
    const auto text = world.share(std::string(id.internal, sizeof id.internal));
    std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const auto status = ncclCommInitRankConfig(&communicator_, ranks(), id, rank(), &config);
    if (status != ncclSuccess && status != ncclInProgress) check(status);
    settle();
  }
  ~Nccl() override {
    if (communicator_) ncclCommAbort(communicator_);
  }

  std::string_view backend() const override { return "nccl"; }
  std::int64_t buffer_bytes() const override { return 0; }  // a Region: counted where it is allocated

  void exchange(const void* in, void* out, std::int64_t bytes) override {
    // Through the staging memory, piece by piece: one part for this rank's bytes, the rest for everyone's.
    const auto most = stage_.bytes() / (ranks() + 1) / 16 * 16;
    for (std::int64_t first = 0; first < bytes; first += most) {
      const auto n = std::min(most, bytes - first);
      auto* all = stage_.bytes_at(most);
      copy(stage_.data(), static_cast<const char*>(in) + first, n, cudaMemcpyHostToDevice);
      run(ncclAllGather(stage_.data(), all, static_cast<std::size_t>(n), ncclUint8, communicator_, stream()));
      for (int r = 0; r < ranks(); ++r)
        copy(static_cast<char*>(out) + r * bytes + first, all + r * n, n, cudaMemcpyDeviceToHost);
    }
  }

 private:
  static cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

  [[noreturn]] void lost(const std::string& what) {
    if (communicator_) {
      ncclCommAbort(communicator_);
      communicator_ = nullptr;
    }
    world_.check();
    world_.fail("nccl: " + what);
  }
  void check(ncclResult_t status) {
    if (status != ncclSuccess) lost(ncclGetErrorString(status));
  }
  std::chrono::steady_clock::time_point deadline() const {
    return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                  std::chrono::duration<double>(world_.timeout_seconds()));
  }
  // Until the communicator has taken the operation up.
  void settle() {
    const auto until = deadline();
    for (;;) {
      ncclResult_t state = ncclSuccess;
      ncclCommGetAsyncError(communicator_, &state);
      if (state == ncclSuccess) return;
      if (state != ncclInProgress) check(state);
      if (world_.failed() || std::chrono::steady_clock::now() > until) lost("no answer from the other ranks");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  // Until the device has finished it.
  void run(ncclResult_t status) {
    if (status != ncclSuccess && status != ncclInProgress) check(status);
    settle();
    const auto until = deadline();
    for (;;) {
      const auto done = cudaStreamQuery(stream());
      if (done == cudaSuccess) return;
      if (done != cudaErrorNotReady) lost(cudaGetErrorString(done));
      ncclResult_t state = ncclSuccess;
      ncclCommGetAsyncError(communicator_, &state);
      if (state != ncclSuccess && state != ncclInProgress) check(state);
      if (world_.failed() || std::chrono::steady_clock::now() > until) lost("a rank did not arrive");
      std::this_thread::yield();
    }
  }
  void copy(void* to, const void* from, std::int64_t bytes, cudaMemcpyKind kind) {
    if (cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream()) != cudaSuccess ||
        cudaStreamSynchronize(stream()) != cudaSuccess)
      lost("a copy failed");
  }

  void do_all_gather(const void* in, void* out, std::int64_t elements, Type type) override {
    run(ncclAllGather(in, out, static_cast<std::size_t>(elements), nccl_type(type), communicator_, stream()));
  }
  void do_reduce_scatter(const void* in, Type in_type, void* out, Type out_type, std::int64_t elements) override {
    if (in_type == out_type) {
      run(ncclReduceScatter(in, out, static_cast<std::size_t>(elements), nccl_type(in_type), ncclSum, communicator_,
                            stream()));
      return;
    }
    // Widened piece by piece in the staging memory, then summed in the wider type.
    auto scalar = [](Type type) { return type == Type::kFp32 ? at::kFloat : at::kBFloat16; };
    auto view = [&](const void* data, Type type, std::int64_t n) {
      return at::from_blob(const_cast<void*>(data), {n}, at::TensorOptions().dtype(scalar(type)).device(at::kCUDA));
    };
    const auto most = stage_.bytes() / (ranks() * width_of(out_type));
    for (std::int64_t first = 0; first < elements; first += most) {
      const auto n = std::min(most, elements - first);
      for (int r = 0; r < ranks(); ++r)
        view(stage_.bytes_at(r * n * width_of(out_type)), out_type, n)
            .copy_(view(static_cast<const char*>(in) + (r * elements + first) * width_of(in_type), in_type, n));
      run(ncclReduceScatter(stage_.data(), static_cast<char*>(out) + first * width_of(out_type),
                            static_cast<std::size_t>(n), nccl_type(out_type), ncclSum, communicator_, stream()));
    }
  }
  void do_all_reduce(void* data, std::int64_t elements, Type type) override {
    run(ncclAllReduce(data, data, static_cast<std::size_t>(elements), nccl_type(type), ncclSum, communicator_,
                      stream()));
  }
  void do_broadcast(void* data, std::int64_t bytes, int root) override {
    run(ncclBroadcast(data, data, static_cast<std::size_t>(bytes), ncclUint8, root, communicator_, stream()));
  }
  void do_barrier() override {
    run(ncclAllReduce(stage_.data(), stage_.data(), 1, ncclFloat32, ncclSum, communicator_, stream()));
  }

  World& world_;
  device::Region stage_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace

std::unique_ptr<Collective> make_nccl(World& world, std::int64_t stage_bytes) {
  return std::make_unique<Nccl>(world, stage_bytes);
}

}  // namespace shardfit::comm
