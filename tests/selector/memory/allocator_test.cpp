// The rules of c10/cuda/CUDACachingAllocator.cpp, one by one.
#include "selector/memory/allocator.hpp"

#include <gtest/gtest.h>

#include <random>

#include "selector/memory/timeline.hpp"

namespace shardfit::memory {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(Allocator, SmallAllocationsShareATwoMebibyteSegment) {
  CachingAllocator a({});
  a.allocate(1, 0);
  EXPECT_EQ(a.allocated(), 512);
  a.allocate(kMiB, 0);
  EXPECT_EQ(a.reserved(), 2 * kMiB);
  a.allocate(kMiB, 0);                       // 512 B are taken: no second MiB fits
  EXPECT_EQ(a.reserved(), 4 * kMiB);
}

TEST(Allocator, MiddleSizesTakeTwentyMebibytesLargeOnesTheirOwn) {
  CachingAllocator a({});
  a.allocate(2 * kMiB, 0);
  EXPECT_EQ(a.reserved(), 20 * kMiB);
  a.allocate(11 * kMiB, 0);                  // fits what is left of the 20
  EXPECT_EQ(a.reserved(), 20 * kMiB);
  a.allocate(11 * kMiB + 1, 0);
  EXPECT_EQ(a.reserved(), 32 * kMiB);        // a segment of 12, rounded to 2 MiB
}

TEST(Allocator, ARestOfAtMostOneMebibyteIsNotSplitOffAndCountsAsAllocated) {
  CachingAllocator a({});
  const auto b = a.allocate(12 * kMiB, 0);
  a.free(b);
  a.allocate(12 * kMiB - kMiB / 2, 0);
  EXPECT_EQ(a.allocated(), 12 * kMiB);
  EXPECT_EQ(a.reserved(), 12 * kMiB);
}

TEST(Allocator, FreedNeighboursMerge) {
  CachingAllocator a({});
  const auto whole = a.allocate(30 * kMiB, 0);
  a.free(whole);
  const auto b = a.allocate(10 * kMiB, 0), c = a.allocate(10 * kMiB, 0), d = a.allocate(10 * kMiB, 0);
  EXPECT_EQ(a.reserved(), 30 * kMiB);
  a.free(b);
  a.free(d);
  a.free(c);
  a.allocate(30 * kMiB, 0);
  EXPECT_EQ(a.reserved(), 30 * kMiB);
}

TEST(Allocator, StreamsDoNotShare) {
  CachingAllocator a({});
  a.free(a.allocate(64 * kMiB, 0));
  a.allocate(64 * kMiB, 1);
  EXPECT_EQ(a.reserved(), 128 * kMiB);
  EXPECT_EQ(a.cached(0), 64 * kMiB);
}

TEST(Allocator, AtTheLimitCachedSegmentsGoBackBeforeItRunsOut) {
  CachingAllocator a({.expandable_segments = false, .limit = 100 * kMiB});
  a.free(a.allocate(60 * kMiB, 0));
  a.allocate(80 * kMiB, 0);                  // 60 cached MiB do not serve it
  EXPECT_FALSE(a.ran_out());
  EXPECT_EQ(a.reserved(), 80 * kMiB);
  a.allocate(40 * kMiB, 0);
  EXPECT_TRUE(a.ran_out());
}

TEST(Allocator, ExpandableSegmentsGrowAtTheirEnd) {
  CachingAllocator a({.expandable_segments = true, .limit = 0});
  a.free(a.allocate(60 * kMiB, 0));
  a.allocate(80 * kMiB, 0);
  EXPECT_EQ(a.reserved(), 80 * kMiB);        // the free 60 are extended by 20
}

TEST(Allocator, RandomSequencesKeepTheBooks) {
  std::mt19937 random(7);
  for (const bool expandable : {false, true}) {
    CachingAllocator a({.expandable_segments = expandable, .limit = 0});
    std::vector<CachingAllocator::Block> live;
    for (int i = 0; i < 20000; ++i) {
      if (live.empty() || random() % 5 < 3) {
        live.push_back(a.allocate(static_cast<std::int64_t>(random() % (1u << (5 + random() % 22))), static_cast<int>(random() % 3)));
      } else {
        const std::size_t k = random() % live.size();
        a.free(live[k]);
        live[k] = live.back();
        live.pop_back();
      }
      ASSERT_LE(a.allocated(), a.reserved());
      if (i % 1000 == 0) {
        std::int64_t sum = 0;
        for (auto b : live) sum += a.size(b);
        ASSERT_EQ(sum, a.allocated());
        ASSERT_EQ(a.allocated() + a.cached(0) + a.cached(1) + a.cached(2), a.reserved());
      }
    }
    for (auto b : live) a.free(b);
    EXPECT_EQ(a.allocated(), 0);
  }
}

TEST(Timeline, RecordedStoragesReturnWhenTheDeviceHasCaughtUp) {
  Timeline t({});
  t.hold_recorded(10);
  const auto h = t.make(64 * kMiB, Term::kActivations);
  t.record(h);
  t.drop(h);
  EXPECT_EQ(t.allocated(), 0);               // torch counts it as free
  t.make(64 * kMiB, Term::kActivations);
  EXPECT_EQ(t.reserved_peak(), 128 * kMiB);  // but it cannot be used yet
  t.launch(10);
  t.make(64 * kMiB, Term::kActivations);
  EXPECT_EQ(t.reserved_peak(), 128 * kMiB);
}

TEST(Timeline, PeakNamesItsPhaseAndItsTerms) {
  Timeline t({});
  t.enter(Phase::kForward);
  const auto kept = t.make(10 * kMiB, Term::kActivations);
  t.enter(Phase::kLoss);
  t.drop(t.make(20 * kMiB, Term::kLogits));
  t.enter(Phase::kBackward);
  t.drop(kept);
  t.make(12 * kMiB, Term::kGradients);
  EXPECT_EQ(t.allocated_peak(), 30 * kMiB);
  EXPECT_EQ(t.peak_phase(), Phase::kLoss);
  EXPECT_EQ(t.peak_terms()[static_cast<std::size_t>(Term::kLogits)], 20 * kMiB);
  EXPECT_EQ(t.phase_peak(Phase::kBackward), 12 * kMiB);
}

}  // namespace
}  // namespace shardfit::memory
