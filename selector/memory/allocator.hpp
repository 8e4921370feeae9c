// Replay of PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp): which segments a sequence of allocations and
// frees makes it take from the driver. Sizes are rounded to 512 B; up to 1 MiB comes from 2 MiB segments, up to 10 MiB from
// 20 MiB segments, more from a segment of its own rounded to 2 MiB; best fit within the pool of a stream; a block is split where
// the rest is worth keeping (small pool 512 B, large pool more than 1 MiB); neighbours are merged when freed.
#pragma once
#include <cstdint>
#include <vector>

namespace shardfit::memory {

class CachingAllocator {
 public:
  struct Options {
    bool expandable_segments = false;
    std::int64_t limit = 0;         // bytes the device gives to the allocator; 0 = no limit
  };
  static constexpr int kStreams = 5;
  using Block = std::int32_t;

  explicit CachingAllocator(const Options& options) : options_(options) {}

  // Whole cached segments go back to the driver when the limit is hit, as torch does before it reports that memory ran out; if
  // that is not enough `ran_out()` becomes true and the replay goes on beyond the limit.
  Block allocate(std::int64_t bytes, int stream);
  void free(Block block);
  std::int64_t size(Block block) const { return blocks_[static_cast<std::size_t>(block)].size; }

  std::int64_t allocated() const { return allocated_; }  // sum of block sizes, with rests too small to split off (as torch counts)
  std::int64_t reserved() const { return reserved_; }
  std::int64_t allocated_peak() const { return allocated_peak_; }
  std::int64_t reserved_peak() const { return reserved_peak_; }
  bool ran_out() const { return ran_out_; }
  std::int64_t cached(int stream) const;   // free bytes in the pools of a stream

 private:
  struct Node {
    std::int64_t size = 0;
    Block previous = -1, next = -1;   // neighbours in the segment
    std::int16_t pool = 0;
    bool is_free = false;
  };
  struct SizeClass {                  // free blocks of one size: sizes repeat, blocks are many
    std::int64_t size = 0;
    std::vector<Block> blocks;        // oldest last: the next to be taken
  };
  using FreeList = std::vector<SizeClass>;  // sorted by size, none empty

  static FreeList::iterator at_least(FreeList& list, std::int64_t size);
  Block new_node();
  void insert_free(Block block);
  void remove_free(Block block);
  Block take_segment(std::int64_t bytes, int pool, bool small);
  Block extend_tail(std::int64_t bytes, int pool, bool small);
  void release_cached();

  Options options_;
  std::vector<Node> blocks_;
  std::vector<Block> unused_;                       // numbers to use again
  FreeList free_[2 * kStreams];
  std::vector<std::vector<Block>> spare_;           // emptied lists, to use their memory again
  Block tail_[2 * kStreams] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};  // expandable: last block of the pool's segment
  std::int64_t allocated_ = 0, reserved_ = 0, allocated_peak_ = 0, reserved_peak_ = 0;
  bool ran_out_ = false;
};

}  // namespace shardfit::memory
