#include "runtime/data/order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "regions/base/error.hpp"

namespace shardfit::data {
namespace {

std::vector<std::int64_t> epoch_of(const Order& order, std::int64_t epoch) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < order.samples_per_epoch(); ++i)
    rows.push_back(order.row(epoch * order.samples_per_epoch() + i));
  return rows;
}

TEST(Order, EveryEpochHasEachRowOnceInAnotherOrder) {
  for (const std::int64_t rows : {1, 2, 3, 5, 16, 17, 1000, 4096}) {
    const Order order(rows, 4, 42, true, false);
    std::set<std::vector<std::int64_t>> orders;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      auto seen = epoch_of(order, epoch);
      orders.insert(seen);
      std::sort(seen.begin(), seen.end());
      for (std::int64_t i = 0; i < rows; ++i) ASSERT_EQ(seen[static_cast<std::size_t>(i)], i) << rows;
    }
    if (rows >= 5) {
      EXPECT_EQ(orders.size(), 3u) << rows;
    }
  }
}

TEST(Order, DependsOnTheSeedAndIsSpreadEvenly) {
  EXPECT_NE(epoch_of(Order(100, 4, 1, true, false), 0), epoch_of(Order(100, 4, 2, true, false), 0));
  EXPECT_EQ(epoch_of(Order(100, 4, 1, true, false), 0),
            epoch_of(Order(100, 64, 1, true, false), 0));  // not on the batch
  // Over many seeds each row comes first about equally often: 4000 draws over 10 rows, 400 each, standard deviation 19.
  std::vector<int> first(10);
  for (std::uint64_t seed = 0; seed < 4000; ++seed)
    ++first[static_cast<std::size_t>(Order(10, 1, seed, true, false).row(0))];
  for (const int count : first) EXPECT_NEAR(count, 400, 100);
}

TEST(Order, WithoutShuffleIsFileOrder) {
  const Order order(5, 2, 42, false, false);
  std::vector<std::int64_t> rows;
  for (std::int64_t p = 0; p < 7; ++p) rows.push_back(order.row(p));
  EXPECT_EQ(rows, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1}));
}

TEST(Order, TheLastBatchOfAnEpochIsShortAndPositionsCountOn) {
  const Order order(10, 4, 42, true, false);
  EXPECT_EQ(order.steps_per_epoch(), 3);
  const Batch third = order.batch(3), fourth = order.batch(4);
  EXPECT_EQ(third.first, 8);
  EXPECT_EQ(third.count, 2);
  EXPECT_EQ(fourth.first, 10);
  EXPECT_EQ(fourth.count, 4);
  EXPECT_EQ(fourth.epoch, 1);
}

TEST(Order, DropLastLeavesTheShortBatchOut) {
  const Order order(10, 4, 42, true, true);
  EXPECT_EQ(order.steps_per_epoch(), 2);
  EXPECT_EQ(order.batch(3).first, 8);
  EXPECT_EQ(order.batch(3).epoch, 1);
  EXPECT_THROW(Order(3, 4, 42, true, true), Error);
  EXPECT_THROW(Order(0, 4, 42, true, false), Error);
}

TEST(Order, PlacesPositionsAsTheContractSays) {
  // micro_batch 2, 3 ranks: position p goes to micro step p div 6, rank (p div 2) mod 3.
  const Batch batch{1, 100, 9, 0};
  EXPECT_EQ(micro_steps(9, 2, 3), 2);
  EXPECT_EQ(positions_of(batch, 0, 0, 2, 3), (std::vector<std::int64_t>{100, 101}));
  EXPECT_EQ(positions_of(batch, 0, 2, 2, 3), (std::vector<std::int64_t>{104, 105}));
  EXPECT_EQ(positions_of(batch, 1, 0, 2, 3), (std::vector<std::int64_t>{106, 107}));
  EXPECT_EQ(positions_of(batch, 1, 1, 2, 3), (std::vector<std::int64_t>{108}));
  EXPECT_TRUE(positions_of(batch, 1, 2, 2, 3).empty());
  for (std::int64_t p = 0; p < 9; ++p) {
    const Place at = place(p, 2, 3);
    const auto positions = positions_of(batch, at.micro_step, at.rank, 2, 3);
    EXPECT_NE(std::find(positions.begin(), positions.end(), 100 + p), positions.end()) << p;
  }
}

}  // namespace
}  // namespace shardfit::data
