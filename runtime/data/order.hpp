// In which order a run sees the rows of its data, and which rank computes which of them. Everything here depends on
// seed and epoch only: never on ranks, micro batch or accumulation.
#pragma once
#include <cstdint>
#include <vector>

namespace shardfit::data {

// One optimizer step's share of the run's order: positions [first, first + count).
struct Batch {
  std::int64_t step = 0;   // counted from 1
  std::int64_t first = 0;  // position in the run's order, counted from 0 and on across epochs
  std::int64_t count = 0;  // rows; less than the global batch only at the end of an epoch
  std::int64_t epoch = 0;  // counted from 0
};

class Order {
 public:
  // `rows` of the data, `global_batch` rows a step. Throws Error{data_too_small} when there is nothing to train on (no
  // rows, or fewer than a global batch with drop_last).
  Order(std::int64_t rows, std::int64_t global_batch, std::uint64_t seed, bool shuffle, bool drop_last);

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t samples_per_epoch() const {
    return samples_per_epoch_;
  }                                               // rows, or whole global batches of them with drop_last
  Batch batch(std::int64_t step) const;           // step >= 1; data repeat for ever
  std::int64_t row(std::int64_t position) const;  // position in the run's order -> row of the data, in O(1)

 private:
  std::int64_t rows_, global_batch_, steps_per_epoch_, samples_per_epoch_;
  std::uint64_t seed_;
  bool shuffle_;
};

// Where position p of a global batch (counted from 0) is computed: micro step p div (micro_batch x ranks), and within
// it on data-parallel rank (p div micro_batch) mod ranks.
struct Place {
  std::int64_t micro_step = 0;
  std::int64_t rank = 0;
};
Place place(std::int64_t p, std::int64_t micro_batch, std::int64_t ranks);

// Micro steps that a batch of `count` rows needs: ceil(count / (micro_batch x ranks)). All ranks take part in each.
std::int64_t micro_steps(std::int64_t count, std::int64_t micro_batch, std::int64_t ranks);

// Run positions that `rank` computes in `micro_step` of `batch`, in order; at most micro_batch of them, fewer or none
// at the end of a short batch.
std::vector<std::int64_t> positions_of(const Batch& batch, std::int64_t micro_step, std::int64_t rank,
                                       std::int64_t micro_batch, std::int64_t ranks);

}  // namespace shardfit::data
