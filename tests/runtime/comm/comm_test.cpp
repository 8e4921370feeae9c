// Collectives against sums done by hand, on 1 to 4 ranks (threads of this process); what happens when a rank is
// missing, strays or dies.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "runtime/comm/shm.hpp"
#include "runtime/comm/world.hpp"
#ifdef SHARDFIT_WITH_GLOO
#include "runtime/comm/gloo/gloo.hpp"
#endif

namespace shardfit::comm {
namespace {

constexpr std::int64_t kStage = 4096;  // small: every operation takes several rounds

using Body = std::function<void(World&, Collective&)>;

// Runs `body` on each rank; gives back what each threw ("" = nothing).
std::vector<std::string> on_ranks(
    int ranks, const std::string& road, const Body& body, double timeout = 20,
    const std::function<std::string(int)>& agreement = [](int) { return "same"; }) {
  const auto listening = listen_on_loopback();
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        World world({rank, ranks, "127.0.0.1", listening.port, agreement(rank), timeout,
                     rank == 0 ? listening.descriptor : -1});
        std::unique_ptr<Collective> collective;
#ifdef SHARDFIT_WITH_GLOO
        if (road == "gloo") collective = make_gloo(world, ranks * 3 * 4096);
#endif
        if (!collective) collective = make_shm(world, kStage);
        body(world, *collective);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = std::to_string(error.exit_status) + " " + error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> silent(int ranks) { return std::vector<std::string>(static_cast<std::size_t>(ranks)); }

float value(int rank, std::int64_t i) {
  return static_cast<float>(std::sin(static_cast<double>(i) * 0.37 + rank)) * (rank == 1 ? 1e4f : 1.0f);
}

std::vector<std::string> roads() {
#ifdef SHARDFIT_WITH_GLOO
  return {"shm", "gloo"};
#else
  return {"shm"};
#endif
}

class Roads : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string road() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(Roads, GatherReduceAndBroadcast) {
  const int n = ranks();
  const auto errors = on_ranks(n, road(), [&](World&, Collective& c) {
    for (const std::int64_t elements : {1, 7, 1000, 5003}) {
      std::vector<float> mine, all(static_cast<std::size_t>(elements * n));
      for (std::int64_t i = 0; i < elements; ++i) mine.push_back(value(c.rank(), i));
      c.all_gather(mine.data(), all.data(), elements, Type::kFp32);
      for (int r = 0; r < n; ++r)
        for (std::int64_t i = 0; i < elements; ++i)
          ASSERT_EQ(all[static_cast<std::size_t>(r * elements + i)], value(r, i));
      // In place: the input is this rank's part of the output.
      std::vector<float> place(all.size());
      std::copy(mine.begin(), mine.end(), place.begin() + c.rank() * elements);
      c.all_gather(place.data() + c.rank() * elements, place.data(), elements, Type::kFp32);
      ASSERT_EQ(place, all);

      std::vector<float> wide, part(static_cast<std::size_t>(elements));
      for (std::int64_t i = 0; i < elements * n; ++i) wide.push_back(value(c.rank(), i));
      c.reduce_scatter(wide.data(), Type::kFp32, part.data(), Type::kFp32, elements);
      auto summed = wide;
      c.all_reduce(summed.data(), elements * n, Type::kFp32);
      for (std::int64_t i = 0; i < elements * n; ++i) {
        float sum = value(0, i);
        for (int r = 1; r < n; ++r) sum += value(r, i);
        ASSERT_EQ(summed[static_cast<std::size_t>(i)], sum) << i;  // to the bit: sums go in the order of the ranks
        if (i / elements == c.rank()) {
          ASSERT_EQ(part[static_cast<std::size_t>(i % elements)], sum);
        }
      }
      std::vector<float> cast = c.rank() == n - 1 ? mine : std::vector<float>(mine.size());
      c.broadcast(cast.data(), elements * 4, n - 1);
      for (std::int64_t i = 0; i < elements; ++i) ASSERT_EQ(cast[static_cast<std::size_t>(i)], value(n - 1, i));
    }
    c.barrier();
    EXPECT_EQ(c.sum(c.rank() + 1), n * (n + 1) / 2);
    EXPECT_EQ(c.largest(c.rank()), n - 1);
    EXPECT_TRUE(std::isnan(c.largest(c.rank() == 1 ? std::nan("") : 1.0)));
  });
  EXPECT_EQ(errors, silent(n));
}

TEST_P(Roads, Bf16IsSummedInFp32) {
  const int n = ranks();
  const std::uint16_t one = 0x3f80, small = 0x3b00;  // 1 and 2^-9: lost if the sum were rounded to bf16 after each rank
  const auto errors = on_ranks(n, road(), [&](World&, Collective& c) {
    std::vector<std::uint16_t> in(static_cast<std::size_t>(100 * n), c.rank() == 0 ? one : small);
    std::vector<float> out(100);
    c.reduce_scatter(in.data(), Type::kBf16, out.data(), Type::kFp32, 100);
    for (const float x : out) ASSERT_EQ(x, 1.0f + static_cast<float>(n - 1) / 512.0f);
  });
  EXPECT_EQ(errors, silent(n));
}

INSTANTIATE_TEST_SUITE_P(RanksAndRoads, Roads, testing::Combine(testing::ValuesIn(roads()), testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(World, AMissingRankIsNamed) {
  const auto listening = listen_on_loopback();
  try {
    World world({0, 3, "127.0.0.1", listening.port, "same", 0.3, listening.descriptor});
    FAIL() << "joined without the others";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status, kExitRankLost);
    EXPECT_NE(std::string(error.what()).find("rank 1, rank 2"), std::string::npos) << error.what();
  }
}

TEST(World, RanksThatDisagreeAllStop) {
  const auto errors = on_ranks(
      3, "shm", [](World&, Collective&) {}, 20, [](int rank) { return rank == 2 ? "other" : "same"; });
  for (const auto& error : errors) EXPECT_EQ(error.substr(0, 9), "11 rank 2") << error;
}

TEST(World, StrangersAreIgnored) {
  const auto listening = listen_on_loopback();
  std::thread stranger([&] {  // a connection that says something else
    try {
      World world({1, 7, "127.0.0.1", listening.port, "same", 2});
    } catch (const Error&) {
    }
  });
  std::thread other([&] { World world({1, 2, "127.0.0.1", listening.port, "same", 20}); });
  EXPECT_NO_THROW(World({0, 2, "127.0.0.1", listening.port, "same", 20, listening.descriptor}));
  other.join();
  stranger.join();
}

TEST(Shm, ARankThatNeverComesIsNamedAfterTheDeadline) {
  const auto errors = on_ranks(
      3, "shm",
      [](World&, Collective& c) {
        if (c.rank() != 1) c.barrier();
        else std::this_thread::sleep_for(std::chrono::milliseconds(900));
      },
      0.5);
  for (const int rank : {0, 2})
    EXPECT_NE(errors[static_cast<std::size_t>(rank)].find("10 rank 1 did not arrive at barrier"), std::string::npos)
        << errors[static_cast<std::size_t>(rank)];
}

TEST(Shm, DifferentOperationsAreFoundOut) {
  const auto errors = on_ranks(2, "shm", [](World&, Collective& c) {
    float x[8] = {}, y[16] = {};
    if (c.rank() == 0) c.all_gather(x, y, 8, Type::kFp32);
    else c.all_gather(x, y, 7, Type::kFp32);
  });
  EXPECT_TRUE(errors[0].starts_with("11 ") || errors[1].starts_with("11 ")) << errors[0] << " / " << errors[1];
}

TEST(Shm, AnAnnouncedFailureReachesThoseWhoWait) {
  const auto errors = on_ranks(3, "shm", [](World& world, Collective& c) {
    if (c.rank() == 2) {
      world.announce_failure("the drive is full", 13);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    } else {
      c.barrier();
    }
  });
  for (const int rank : {0, 1})
    EXPECT_EQ(errors[static_cast<std::size_t>(rank)], "13 rank 2 failed: the drive is full");
}

TEST(Collective, TheDumpHoldsTheLastOperations) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("shardfit_dump_" + std::to_string(::getpid()));
  const auto single = make_single();
  single->set_step(7);
  float x = 1;
  for (int i = 0; i < 70; ++i) single->all_reduce(&x, 1, Type::kFp32);
  single->dump(folder, "for the test");
  const auto dump = read_json_file(folder / "rank-0.json");
  ASSERT_EQ(dump.at("collectives").size(), 64u);
  const auto& last = dump.at("collectives").back();
  EXPECT_EQ(last.at("seq"), 70);
  EXPECT_EQ(last.at("op"), "all_reduce");
  EXPECT_EQ(last.at("bytes"), 4);
  EXPECT_EQ(last.at("group"), "world");
  EXPECT_EQ(last.at("step"), 7);
  EXPECT_EQ(last.at("state"), "done");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shardfit::comm
