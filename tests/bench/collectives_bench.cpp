// Collectives over shared memory beside Gloo over the loopback device: collectives_bench [RANKS] [ROUNDS]
// Ranks are threads of this process. 64 KiB to 64 MiB (of the whole gathered buffer), fp32; the two roads in turn,
// medians.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "regions/base/error.hpp"
#include "runtime/comm/gloo/gloo.hpp"
#include "runtime/comm/shm.hpp"
#include "runtime/comm/world.hpp"

namespace {

using namespace shardfit::comm;
using Clock = std::chrono::steady_clock;
constexpr std::int64_t kSizes[] = {64 << 10, 1 << 20, 4 << 20, 64 << 20};
constexpr const char* kOps[] = {"all_gather", "reduce_scatter", "all_reduce"};
constexpr std::int64_t kStage = 1 << 20;  // of the runtime: selector/schedule/step.cpp

void once(Collective& c, int op, float* part, float* whole, std::int64_t elements) {
  if (op == 0) c.all_gather(part, whole, elements / c.ranks(), Type::kFp32);
  else if (op == 1) c.reduce_scatter(whole, Type::kFp32, part, Type::kFp32, elements / c.ranks());
  else c.all_reduce(whole, elements, Type::kFp32);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::clamp(std::atoi(argv[1]), 2, 8) : 2;
  const int rounds = argc > 2 ? std::max(3, std::atoi(argv[2])) : 9;
  const auto listening = listen_on_loopback();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([=] {
      try {
        World world({rank, ranks, "127.0.0.1", listening.port, "", 120, rank == 0 ? listening.descriptor : -1});
        const auto shm = make_shm(world, kStage), gloo = make_gloo(world, ranks * 3 * kStage);
        std::vector<float> whole(static_cast<std::size_t>(kSizes[3] / 4), 1), part(whole.size());
        if (rank == 0) fmt::print("{} ranks; milliseconds, best (median) of {}\n", ranks, rounds);
        for (int op = 0; op < 3; ++op)
          for (const auto bytes : kSizes) {
            std::vector<double> took[2];
            for (int round = -1; round < rounds; ++round)
              for (Collective* road : {shm.get(), gloo.get()}) {
                std::fill(whole.begin(), whole.begin() + bytes / 4, 1.0f);
                shm->barrier();
                const auto start = Clock::now();
                once(*road, op, part.data(), whole.data(), bytes / 4);
                shm->barrier();
                if (round >= 0)
                  took[road == gloo.get()].push_back(1e3 * std::chrono::duration<double>(Clock::now() - start).count());
              }
            for (auto& t : took) std::sort(t.begin(), t.end());
            const double ours = took[0][took[0].size() / 2], other = took[1][took[1].size() / 2];
            const double best = took[0].front(), other_best = took[1].front();
            if (rank == 0)
              fmt::print(
                  "{:<15} {:6} KiB  shared memory {:8.3f} ({:8.3f})  Gloo {:8.3f} ({:8.3f})  {:5.1f} ({:.1f}) times as fast\n",
                  kOps[op], bytes >> 10, best, ours, other_best, other, other_best / best, other / ours);
          }
      } catch (const shardfit::Error& error) {
        fmt::print(stderr, "rank {}: {}\n", rank, error.what());
        std::exit(1);
      }
    });
  for (auto& thread : threads) thread.join();
}
