// The replay of the caching allocator against PyTorch's own: the same pseudo-random allocations and frees must give the same bytes
// allocated and reserved, to the byte. allocator_golden.jsonl comes from tests/truth/fake_gpu/allocator_golden.py (torch 2.4, 2.6 and
// 2.11 give the same).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "selector/memory/allocator.hpp"

namespace shardfit::memory {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : x_(seed) {}
  std::int64_t next(std::int64_t bound) {
    x_ = x_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((x_ >> 33) % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t x_;
};

std::int64_t size_of(Random& random, const std::string& kind) {
  if (kind == "repeat") {
    const auto k = random.next(12);
    return (k + 1) * (k + 1) * (k + 3) * 40961;
  }
  const auto [low, high] = kind == "small" ? std::pair{4, 19} : kind == "middle" ? std::pair{19, 23} : kind == "large" ? std::pair{22, 28} : std::pair{4, 27};
  const auto k = low + random.next(high - low + 1);
  const auto base = std::int64_t{1} << k;
  return base + random.next(base);
}

struct Live {
  CachingAllocator::Block block;
  bool recorded;
};

void replay(const nlohmann::json& golden) {
  const std::int64_t limit = golden["limit_mib"].get<std::int64_t>() << 20;
  CachingAllocator a({.expandable_segments = golden["expandable"].get<int>() != 0, .limit = limit});
  Random random(golden["seed"].get<std::uint64_t>());
  const std::string kind = golden["kind"];
  const auto streams = golden["streams"].get<std::int64_t>(), most = golden["live"].get<std::int64_t>(), ran_out = golden["ran_out"].get<std::int64_t>();
  const bool records = golden["records"].get<int>() != 0;
  std::vector<Live> live;
  std::vector<CachingAllocator::Block> waiting, done;   // freed, recorded on another stream: before and after a synchronisation
  std::int64_t settled = 0;
  std::size_t point = 0;
  const auto& points = golden["points"];
  for (std::int64_t i = 0; i < golden["operations"].get<std::int64_t>(); ++i) {
    const bool grow = random.next(100) < (static_cast<std::int64_t>(live.size()) < most ? 60 : 40);
    if (grow || live.empty()) {
      const auto bytes = size_of(random, kind);
      const auto stream = static_cast<int>(random.next(streams));
      const bool recorded = records && random.next(3) == 0;
      for (const auto b : done) a.settle(b);
      done.clear();
      const auto block = a.allocate(bytes, stream);
      ASSERT_EQ(a.ran_out(), ran_out == i) << "operation " << i;
      if (a.ran_out()) break;
      if (a.settled_all() != settled) waiting.clear();
      settled = a.settled_all();
      live.push_back({block, recorded});
    } else {
      auto& chosen = live[static_cast<std::size_t>(random.next(static_cast<std::int64_t>(live.size())))];
      if (chosen.recorded) {
        a.hold(chosen.block);
        waiting.push_back(chosen.block);
      } else {
        a.free(chosen.block);
      }
      chosen = live.back();
      live.pop_back();
    }
    if (records && i % 64 == 63) {
      done.insert(done.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
    if (i % 250 == 249) {
      ASSERT_EQ(a.allocated(), points[point][0].get<std::int64_t>()) << "operation " << i;
      ASSERT_EQ(a.reserved(), points[point][1].get<std::int64_t>()) << "operation " << i;
      ++point;
    }
  }
  EXPECT_EQ(point, points.size());
  if (ran_out >= 0) return;                        // torch stops there, the replay goes on beyond the limit
  EXPECT_EQ(a.allocated_peak(), golden["peaks"][0].get<std::int64_t>());
  EXPECT_EQ(a.reserved_peak(), golden["peaks"][1].get<std::int64_t>());
}

TEST(AllocatorGolden, EqualsTorch) {
  std::ifstream file(std::string(SHARDFIT_SOURCE_DIR) + "/tests/selector/memory/allocator_golden.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const auto golden = nlohmann::json::parse(line);
    SCOPED_TRACE("seed " + std::to_string(golden["seed"].get<int>()) + " " + golden["kind"].get<std::string>() + " torch " + golden["torch"].get<std::string>());
    replay(golden);
  }
  EXPECT_GE(cases, 60);
}

// Two steps of a small Llama under DDP, FSDP1 (which records streams) and FSDP2, as PyTorch ran them: tests/truth/fake_gpu/allocator_traces.py.
TEST(AllocatorGolden, RealStepsEndAtTorchsPeaks) {
  std::ifstream file(std::string(SHARDFIT_SOURCE_DIR) + "/tests/selector/memory/allocator_traces.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const auto golden = nlohmann::json::parse(line);
    SCOPED_TRACE(golden["steps"].get<std::string>() + (golden["expandable"].get<int>() != 0 ? " expandable" : ""));
    CachingAllocator a({.expandable_segments = golden["expandable"].get<int>() != 0, .limit = 0});
    std::vector<CachingAllocator::Block> made;
    for (const auto& event : golden["events"]) {
      const auto e = event.get<std::int64_t>();
      if (e >= 0) made.push_back(a.allocate(e / 8, static_cast<int>(e % 8)));
      else if (e % 2 != 0) a.hold(made.at(static_cast<std::size_t>((-e - 1) / 2)));
      else a.settle(made.at(static_cast<std::size_t>((-e - 2) / 2)));
    }
    EXPECT_EQ(a.allocated_peak(), golden["peaks"][0].get<std::int64_t>());
    EXPECT_EQ(a.reserved_peak(), golden["peaks"][1].get<std::int64_t>());
  }
  EXPECT_GE(cases, 6);
}

}  // namespace
}  // namespace shardfit::memory
