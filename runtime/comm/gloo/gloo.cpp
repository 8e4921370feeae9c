// One file includes c10d: it takes half a minute to compile. Sums are not left to Gloo's rings, whose order depends on
// the sizes: pieces are exchanged (all-to-all) and added here in the order of the ranks, so that both roads give the
// same bits.
#include "runtime/comm/gloo/gloo.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "regions/base/error.hpp"
#include "runtime/comm/world.hpp"

namespace shardfit::comm {
namespace {

using Group = ::c10d::ProcessGroupGloo;

at::Tensor bytes_of(const void* data, std::int64_t bytes) {
  return at::from_blob(const_cast<void*>(data), {bytes}, at::TensorOptions().dtype(at::kByte));  // inputs are only read
}

class Gloo final : public Collective {
 public:
  // A third of the room each for what is sent, what is received, and LibTorch's own copy of an all-gather.
  Gloo(World& world, std::int64_t buffer_bytes)
      : Collective(world.rank(), world.ranks()),
        world_(world),
        piece_(std::max<std::int64_t>(buffer_bytes / (3 * world.ranks()) / 4096 * 4096, 4096)),
        out_(static_cast<std::size_t>(piece_ * world.ranks())),
        in_(static_cast<std::size_t>(piece_ * world.ranks())) {
    guarded([&] {
      const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(world.timeout_seconds() * 1000));
      ::c10d::TCPStoreOptions options;
      options.isServer = rank() == 0;
      options.waitWorkers = false;
      options.timeout = timeout;
      c10::intrusive_ptr<::c10d::TCPStore> store;
      if (rank() == 0) {
        options.port = 0;
        store = c10::make_intrusive<::c10d::TCPStore>("127.0.0.1", options);
        world.share(std::to_string(store->getPort()));
      } else {
        options.port = static_cast<std::uint16_t>(std::stoi(world.share("")));
        store = c10::make_intrusive<::c10d::TCPStore>(world.one_host() ? "127.0.0.1" : world.address(), options);
      }
      auto group_options = Group::Options::create(timeout);
      const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
      group_options->devices = {interface && *interface ? Group::createDeviceForInterface(interface)
                                : world.one_host()      ? Group::createDeviceForHostname("127.0.0.1")
                                                        : Group::createDefaultDevice()};
      group_options->threads = 1;
      group_ = c10::make_intrusive<Group>(store, rank(), ranks(), group_options);
    });
  }

  std::string_view backend() const override { return "gloo"; }
  std::int64_t buffer_bytes() const override { return static_cast<std::int64_t>(out_.size() + in_.size()); }
  void exchange(const void* in, void* out, std::int64_t bytes) override {
    gather(static_cast<const char*>(in), static_cast<char*>(out), bytes);
  }

 private:
  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      world_.check();
      std::string what = error.what();
      world_.fail("gloo: " + what.substr(0, what.find('\n')));
    }
  }

  void gather(const char* in, char* out, std::int64_t bytes) {
    guarded([&] {
      for (std::int64_t first = 0; first < bytes; first += piece_) {
        const auto n = std::min(piece_, bytes - first);
        std::vector<std::vector<at::Tensor>> outputs(1);
        for (int r = 0; r < ranks(); ++r) outputs[0].push_back(bytes_of(out + r * bytes + first, n));
        // The own place may be the input itself: Gloo gets a copy of it.
        std::memcpy(in_.data(), in + first, static_cast<std::size_t>(n));
        std::vector<at::Tensor> inputs{bytes_of(in_.data(), n)};
        group_->allgather(outputs, inputs)->wait();
      }
    });
  }

  // Sends part r of `send` (n bytes each, dense) to rank r; `receive` gets every rank's part for this one.
  void swap(char* send, char* receive, std::int64_t n) {
    auto input = bytes_of(send, n * ranks()), output = bytes_of(receive, n * ranks());
    std::vector<std::int64_t> even;
    group_->alltoall_base(output, input, even, even)->wait();
  }

  void do_all_gather(const void* in, void* out, std::int64_t elements, Type type) override {
    gather(static_cast<const char*>(in), static_cast<char*>(out), elements * width_of(type));
  }

  void do_reduce_scatter(const void* in, Type in_type, void* out, Type out_type, std::int64_t elements) override {
    guarded([&] {
      const auto width = width_of(in_type), most = piece_ / width;
      const auto* from = static_cast<const char*>(in);
      std::vector<const void*> parts(static_cast<std::size_t>(ranks()));
      for (std::int64_t first = 0; first < elements; first += most) {
        const auto n = std::min(most, elements - first);
        for (int r = 0; r < ranks(); ++r)
          std::memcpy(out_.data() + r * n * width, from + (r * elements + first) * width,
                      static_cast<std::size_t>(n * width));
        swap(out_.data(), in_.data(), n * width);
        for (int r = 0; r < ranks(); ++r) parts[static_cast<std::size_t>(r)] = in_.data() + r * n * width;
        add_in_order(parts.data(), ranks(), in_type, static_cast<char*>(out) + first * width_of(out_type), out_type, n);
      }
    });
  }

  void do_all_reduce(void* data, std::int64_t elements, Type type) override {
    // Each rank sums its part of what fits at once, then all gather the sums.
    const auto width = width_of(type), part = piece_ / width;
    auto* values = static_cast<char*>(data);
    std::vector<char> sum(static_cast<std::size_t>(part * width));
    for (std::int64_t first = 0; first < elements; first += part * ranks()) {
      const auto n = std::min(part * ranks(), elements - first);
      const auto each = (n + ranks() - 1) / ranks();
      guarded([&] {
        std::memset(out_.data(), 0, static_cast<std::size_t>(each * ranks() * width));
        std::memcpy(out_.data(), values + first * width, static_cast<std::size_t>(n * width));
        swap(out_.data(), in_.data(), each * width);
        std::vector<const void*> parts(static_cast<std::size_t>(ranks()));
        for (int r = 0; r < ranks(); ++r) parts[static_cast<std::size_t>(r)] = in_.data() + r * each * width;
        add_in_order(parts.data(), ranks(), type, sum.data(), type, each);
      });
      gather(sum.data(), out_.data(), each * width);
      std::memcpy(values + first * width, out_.data(), static_cast<std::size_t>(n * width));
    }
  }

  void do_broadcast(void* data, std::int64_t bytes, int root) override {
    guarded([&] {
      std::vector<at::Tensor> tensors{bytes_of(data, bytes)};
      ::c10d::BroadcastOptions options;
      options.rootRank = root;
      group_->broadcast(tensors, options)->wait();
    });
  }

  void do_barrier() override {
    char one = 0;
    std::vector<char> all(static_cast<std::size_t>(ranks()));
    gather(&one, all.data(), 1);
  }

  World& world_;
  const std::int64_t piece_;  // bytes of one rank's part in one round
  std::vector<char> out_, in_;
  c10::intrusive_ptr<Group> group_;
};

}  // namespace

std::unique_ptr<Collective> make_gloo(World& world, std::int64_t buffer_bytes) {
  return std::make_unique<Gloo>(world, buffer_bytes);
}

}  // namespace shardfit::comm
