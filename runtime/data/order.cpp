#include "runtime/data/order.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "regions/base/error.hpp"

namespace shardfit::data {
namespace {

constexpr int kRounds = 8;

std::uint64_t mix(std::uint64_t x) {  // the finaliser of splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// A permutation of [0, n) by a balanced Feistel network over the next even number of bits, walking the cycle until the
// value lies below n: any element in O(1) without a table.
std::uint64_t permute(std::uint64_t value, std::uint64_t n, std::uint64_t key) {
  int half = 1;
  while (half < 31 && (std::uint64_t{1} << (2 * half)) < n) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = value >> half, right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mix(right ^ mix(key + static_cast<std::uint64_t>(round))) & mask);
      left = right;
      right = next;
    }
    value = left << half | right;
  } while (value >= n);
  return value;
}

}  // namespace

Order::Order(std::int64_t rows, std::int64_t global_batch, std::uint64_t seed, bool shuffle, bool drop_last)
    : rows_(rows),
      global_batch_(global_batch),
      steps_per_epoch_(0),
      samples_per_epoch_(0),
      seed_(seed),
      shuffle_(shuffle) {
  if (global_batch < 1)
    throw Error("out_of_range", "/global_batch_sequences",
                "is " + std::to_string(global_batch) + ", must be 1 or more");
  if (rows < 1)
    throw Error("data_too_small", "/data/train", "holds no tokens to train on", "name files with text in them");
  if (rows >= std::int64_t{1} << 62) throw Error("out_of_range", "/data/train", "has more rows than can be counted");
  steps_per_epoch_ = drop_last ? rows / global_batch : (rows + global_batch - 1) / global_batch;
  samples_per_epoch_ = drop_last ? steps_per_epoch_ * global_batch : rows;
  if (steps_per_epoch_ == 0)
    throw Error("data_too_small", "/data/train",
                "has " + std::to_string(rows) + " rows, fewer than the " + std::to_string(global_batch) +
                    " of a global batch, and train.dataloader_drop_last drops a short batch",
                "add data, lower global_batch_sequences, or set train.dataloader_drop_last to false");
}

Batch Order::batch(std::int64_t step) const {
  const std::int64_t epoch = (step - 1) / steps_per_epoch_, within = (step - 1) % steps_per_epoch_;
  const std::int64_t first = within * global_batch_;
  return {step, epoch * samples_per_epoch_ + first, std::min(global_batch_, samples_per_epoch_ - first), epoch};
}

std::int64_t Order::row(std::int64_t position) const {
  const std::int64_t epoch = position / samples_per_epoch_, within = position % samples_per_epoch_;
  if (!shuffle_) return within;
  const std::uint64_t key = mix(seed_) ^ mix(~static_cast<std::uint64_t>(epoch));
  return static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(within), static_cast<std::uint64_t>(rows_), key));
}

Place place(std::int64_t p, std::int64_t micro_batch, std::int64_t ranks) {
  return {p / (micro_batch * ranks), p / micro_batch % ranks};
}

std::int64_t micro_steps(std::int64_t count, std::int64_t micro_batch, std::int64_t ranks) {
  const std::int64_t width = micro_batch * ranks;
  return (count + width - 1) / width;
}

std::vector<std::int64_t> positions_of(const Batch& batch, std::int64_t micro_step, std::int64_t rank,
                                       std::int64_t micro_batch, std::int64_t ranks) {
  std::vector<std::int64_t> positions;
  const std::int64_t first = (micro_step * ranks + rank) * micro_batch;
  for (std::int64_t p = first; p < std::min(first + micro_batch, batch.count); ++p)
    positions.push_back(batch.first + p);
  return positions;
}

}  // namespace shardfit::data
