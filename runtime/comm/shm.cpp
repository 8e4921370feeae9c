// Protocol. Every rank goes through the same sequence of rounds. In round s a rank puts its piece into its stage s mod
// 2, publishes `written` = s, waits until all have, reads theirs, and publishes `read` = s. A stage is overwritten in
// round s only when all have read round s - 2. Before reading, ranks compare what they are doing (operation and size):
// a straying rank is found at once.
#include "runtime/comm/shm.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "regions/base/error.hpp"
#include "runtime/comm/world.hpp"

namespace shardfit::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kPage = 4096;
constexpr std::size_t kSignatures = 64;

struct alignas(kPage) Counters {
  std::atomic<std::uint64_t> written{0};
  alignas(128) std::atomic<std::uint64_t> read{0};
  alignas(128) std::atomic<std::uint64_t> signatures[kSignatures];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(Counters) == kPage);

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// A file that all ranks map and nobody keeps: unlinked once all have it.
struct Segment {
  void* base = nullptr;
  std::int64_t bytes = 0;
  ~Segment() {
    if (base) ::munmap(base, static_cast<std::size_t>(bytes));
  }
};

int create_file(std::int64_t bytes, std::string& path) {
  std::string reasons;
  for (const auto& folder : {std::string("/dev/shm"), std::filesystem::temp_directory_path().string()}) {
    path = fmt::format("{}/shardfit-{}-{}", folder, ::getpid(), Clock::now().time_since_epoch().count());
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) {
      reasons += fmt::format("{}: {}; ", folder, std::strerror(errno));
      continue;
    }
    if (const int status = ::posix_fallocate(file, 0, bytes); status != 0) {
      reasons += fmt::format("{}: {}; ", folder, std::strerror(status));
      ::close(file);
      ::unlink(path.c_str());
      continue;
    }
    return file;
  }
  throw Error("no_shared_memory", "", fmt::format("no room for {} bytes of shared memory ({})", bytes, reasons),
              "give /dev/shm more room, or set SHARDFIT_COMM=gloo", kExitFailed);
}

class Shm final : public Collective {
 public:
  Shm(World& world, std::int64_t stage_bytes)
      : Collective(world.rank(), world.ranks()), world_(world), stage_bytes_(stage_bytes) {
    segment_.bytes = shm_segment_bytes(ranks(), stage_bytes);
    std::string path;
    int file = -1;
    if (rank() == 0) {
      try {
        file = create_file(segment_.bytes, path);
      } catch (const Error& error) {
        world.announce_failure(error.message, error.exit_status);
        throw;
      }
    }
    path = world.share(path);
    if (rank() != 0) file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0)
      throw Error("no_shared_memory", "", fmt::format("cannot open {}: {}", path, std::strerror(errno)),
                  "set SHARDFIT_COMM=gloo", kExitFailed);
    void* base = ::mmap(nullptr, static_cast<std::size_t>(segment_.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (base == MAP_FAILED)
      throw Error("no_shared_memory", "", fmt::format("cannot map {}: {}", path, std::strerror(errno)), "",
                  kExitFailed);
    segment_.base = base;
    if (rank() == 0)
      for (int r = 0; r < ranks(); ++r) new (&counters(r)) Counters;
    world.share("counters ready");  // rank 0 says so after it has made them
    do_barrier();
    if (rank() == 0) ::unlink(path.c_str());
  }

  std::string_view backend() const override { return "shm"; }
  std::int64_t buffer_bytes() const override { return segment_.bytes; }

  void exchange(const void* in, void* out, std::int64_t bytes) override {
    gather_bytes(static_cast<const char*>(in), static_cast<char*>(out), bytes, 'x');
  }

 private:
  Counters& counters(int rank) const {
    return *reinterpret_cast<Counters*>(static_cast<char*>(segment_.base) +
                                        rank * static_cast<std::int64_t>(sizeof(Counters)));
  }
  char* stage(int rank, std::uint64_t round) const {
    return static_cast<char*>(segment_.base) + ranks() * static_cast<std::int64_t>(sizeof(Counters)) +
           (rank * 2 + static_cast<int>(round % 2)) * stage_bytes_;
  }

  template <typename Ready>
  void wait_until(const Ready& ready, const char* doing, const std::function<bool(int)>& arrived) const {
    for (int spin = 0; spin < 200; ++spin) {
      if (ready()) return;
      __builtin_ia32_pause();
    }
    const auto start = Clock::now();
    const auto deadline =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(world_.timeout_seconds()));
    for (long turn = 0;; ++turn) {
      if (ready()) return;
      if (turn < 200) {
        ::sched_yield();
        continue;
      }
      timespec pause{0, turn < 2000 ? 20'000 : 200'000};
      ::nanosleep(&pause, nullptr);
      if (ready()) return;
      world_.check();
      if (Clock::now() > deadline) {
        std::string absent;
        for (int r = 0; r < ranks(); ++r)
          if (!arrived(r)) absent += fmt::format("{}rank {}", absent.empty() ? "" : ", ", r);
        throw Error("rank_lost", "",
                    fmt::format("{} did not arrive at {} (operation {}) within {:g} s", absent, doing, round_,
                                world_.timeout_seconds()),
                    "see that rank's own output; SHARDFIT_TIMEOUT sets the wait", kExitRankLost);
      }
    }
  }

  // One round: write(stage) puts this rank's bytes, read(round) takes the others'. Either may be empty.
  template <typename Write, typename Read>
  void round(std::uint64_t signature, const char* doing, const Write& write, const Read& read) {
    const auto s = ++round_;
    auto all_read = [&] {
      for (int r = 0; r < ranks(); ++r)
        if (counters(r).read.load(std::memory_order_acquire) + 2 < s) return false;
      return true;
    };
    wait_until(all_read, doing, [&](int r) { return counters(r).read.load() + 2 >= s; });
    write(stage(rank(), s));
    auto& own = counters(rank());
    own.signatures[s % kSignatures].store(signature, std::memory_order_relaxed);
    own.written.store(s, std::memory_order_release);
    auto all_written = [&] {
      for (int r = 0; r < ranks(); ++r)
        if (counters(r).written.load(std::memory_order_acquire) < s) return false;
      return true;
    };
    wait_until(all_written, doing, [&](int r) { return counters(r).written.load() >= s; });
    for (int r = 0; r < ranks(); ++r)
      if (counters(r).signatures[s % kSignatures].load(std::memory_order_relaxed) != signature)
        throw Error("ranks_out_of_step", "",
                    fmt::format("rank {} is at another operation than rank {} ({}, operation {})", r, rank(), doing, s),
                    "", kExitOutOfStep);
    read(s);
    own.read.store(s, std::memory_order_release);
  }

  static std::uint64_t sign(char op, std::int64_t bytes, int extra = 0) {
    return static_cast<std::uint64_t>(bytes) * 1099511628211ULL ^ (static_cast<std::uint64_t>(op) << 56) ^
           static_cast<std::uint64_t>(extra) << 48;
  }

  void gather_bytes(const char* in, char* out, std::int64_t bytes, char op) {
    std::int64_t first = 0;
    do {
      const auto n = std::min(stage_bytes_, bytes - first);
      round(
          sign(op, bytes), "all_gather", [&](char* to) { std::memcpy(to, in + first, static_cast<std::size_t>(n)); },
          [&](std::uint64_t s) {
            for (int r = 0; r < ranks(); ++r) {
              char* to = out + r * bytes + first;
              if (r == rank()) {
                if (to != in + first) std::memmove(to, in + first, static_cast<std::size_t>(n));
              } else {
                std::memcpy(to, stage(r, s), static_cast<std::size_t>(n));
              }
            }
          });
      first += n;
    } while (first < bytes);
  }

  void do_all_gather(const void* in, void* out, std::int64_t elements, Type type) override {
    gather_bytes(static_cast<const char*>(in), static_cast<char*>(out), elements * width_of(type), 'g');
  }

  void do_reduce_scatter(const void* in, Type in_type, void* out, Type out_type, std::int64_t elements) override {
    const auto in_width = width_of(in_type), out_width = width_of(out_type);
    const auto most =
        std::max<std::int64_t>(stage_bytes_ / ranks() / in_width / 16 * 16, 1);  // elements of a part in one round
    std::vector<const void*> parts(static_cast<std::size_t>(ranks()));
    const auto* from = static_cast<const char*>(in);
    for (std::int64_t first = 0; first < elements; first += most) {
      const auto n = std::min(most, elements - first);
      round(
          sign('s', elements, static_cast<int>(in_type)), "reduce_scatter",
          [&](char* to) {
            for (int r = 0; r < ranks(); ++r)
              if (r != rank())
                std::memcpy(to + r * most * in_width, from + (r * elements + first) * in_width,
                            static_cast<std::size_t>(n * in_width));
          },
          [&](std::uint64_t s) {
            for (int r = 0; r < ranks(); ++r)
              parts[static_cast<std::size_t>(r)] =
                  r == rank() ? from + (rank() * elements + first) * in_width : stage(r, s) + rank() * most * in_width;
            add_in_order(parts.data(), ranks(), in_type, static_cast<char*>(out) + first * out_width, out_type, n);
          });
    }
  }

  void do_all_reduce(void* data, std::int64_t elements, Type type) override {
    const auto width = width_of(type);
    const auto part =
        std::max<std::int64_t>(stage_bytes_ / ranks() / width / 16 * 16, 1);  // elements that one rank sums in a round
    const auto most = part * ranks();
    auto* values = static_cast<char*>(data);
    std::vector<const void*> parts(static_cast<std::size_t>(ranks()));
    for (std::int64_t first = 0; first < elements; first += most) {
      const auto n = std::min(most, elements - first);
      const auto begin = std::min(part * rank(), n), end = std::min(part * (rank() + 1), n);
      char* mine = nullptr;
      round(
          sign('a', elements, static_cast<int>(type)), "all_reduce",
          [&](char* to) {
            mine = to;
            std::memcpy(to, values + first * width, static_cast<std::size_t>(n * width));
          },
          [&](std::uint64_t s) {
            for (int r = 0; r < ranks(); ++r) parts[static_cast<std::size_t>(r)] = stage(r, s) + begin * width;
            add_in_order(parts.data(), ranks(), type, values + (first + begin) * width, type, end - begin);
          });
      round(
          sign('b', elements, static_cast<int>(type)), "all_reduce",
          [&](char* to) {
            std::memcpy(to, values + (first + begin) * width, static_cast<std::size_t>((end - begin) * width));
          },
          [&](std::uint64_t s) {
            for (int r = 0; r < ranks(); ++r) {
              const auto from = std::min(part * r, n), until = std::min(part * (r + 1), n);
              if (r != rank())
                std::memcpy(values + (first + from) * width, stage(r, s),
                            static_cast<std::size_t>((until - from) * width));
            }
          });
    }
  }

  void do_broadcast(void* data, std::int64_t bytes, int root) override {
    auto* values = static_cast<char*>(data);
    for (std::int64_t first = 0; first < bytes; first += stage_bytes_) {
      const auto n = std::min(stage_bytes_, bytes - first);
      round(
          sign('c', bytes, root), "broadcast",
          [&](char* to) {
            if (rank() == root) std::memcpy(to, values + first, static_cast<std::size_t>(n));
          },
          [&](std::uint64_t s) {
            if (rank() != root) std::memcpy(values + first, stage(root, s), static_cast<std::size_t>(n));
          });
    }
  }

  void do_barrier() override {
    round(
        sign('r', 0), "barrier", [](char*) {}, [](std::uint64_t) {});
  }

  World& world_;
  const std::int64_t stage_bytes_;
  Segment segment_;
  std::uint64_t round_ = 0;
};

}  // namespace

std::int64_t shm_segment_bytes(int ranks, std::int64_t stage_bytes) {
  return round_up(ranks * (static_cast<std::int64_t>(sizeof(Counters)) + 2 * stage_bytes), kPage);
}

std::unique_ptr<Collective> make_shm(World& world, std::int64_t stage_bytes) {
  return std::make_unique<Shm>(world, stage_bytes);
}

}  // namespace shardfit::comm
