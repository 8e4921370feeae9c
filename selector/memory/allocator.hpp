// Replay of PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp): which segments a sequence of allocations and
// frees makes it take from the driver. Sizes are rounded to 512 B; up to 1 MiB comes from 2 MiB segments, up to 10 MiB from
// 20 MiB segments, more from a segment of its own rounded to 2 MiB; best fit within the pool of a stream, the lowest address among
// equals; a block is split where the rest is worth keeping (small pool 512 B, large pool more than 1 MiB); neighbours are merged
// when freed. Under expandable_segments a pool of a stream is one range of addresses, mapped in steps of 2 or 20 MiB.
// allocator_golden_test.cpp holds it to the allocator of torch 2.4 to 2.11 itself, allocation by allocation.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace shardfit::memory {

class CachingAllocator {
 public:
  struct Options {
    bool expandable_segments = false;
    std::int64_t limit = 0;         // bytes the device gives to the allocator; 0 = no limit
    int rigid_stream = -1;          // its pools never expand: the private pool of a CUDA graph (alloc_block, owner_PrivatePool)
  };
  static constexpr int kStreams = 5;
  using Block = std::int32_t;

  explicit CachingAllocator(const Options& options) : options_(options) {}

  // When the limit is hit, every cached segment goes back to the driver (every mapped step that is free, under
  // expandable_segments), as torch does before it reports that memory ran out; if that is not enough `ran_out()` becomes true and
  // the replay goes on beyond the limit.
  Block allocate(std::int64_t bytes, int stream);
  void free(Block block);

  // A free that waits for another stream (record_stream): the block no longer counts as allocated, and can be used again only after
  // `settle`. At the limit the allocator waits for the device and settles all of them: `settled_all` counts how often.
  void hold(Block block);
  void settle(Block block);
  std::int64_t settled_all() const { return settled_all_; }
  std::int64_t size(Block block) const { return node(block).size; }

  std::int64_t allocated() const { return allocated_; }  // sum of block sizes, with rests too small to split off (as torch counts)
  std::int64_t reserved() const { return reserved_; }
  std::int64_t allocated_peak() const { return allocated_peak_; }
  std::int64_t reserved_peak() const { return reserved_peak_; }
  bool ran_out() const { return ran_out_; }
  std::int64_t cached(int stream) const;   // free bytes in the pools of a stream

 private:
  static constexpr Block kNone = -1;
  struct Node {
    std::int64_t size = 0, address = 0;
    Block previous = kNone, next = kNone;  // neighbours in the segment
    std::int16_t pool = 0;
    bool is_free = false;
    bool mapped = true;                    // false: addresses of an expandable segment without memory
  };
  struct SizeClass {                       // free blocks of one size: sizes repeat, blocks are many
    std::int64_t size = 0;
    std::vector<Block> blocks;             // highest address first: the last is the next to be taken
  };
  using FreeList = std::vector<SizeClass>; // sorted by size, none empty

  Node& node(Block b) { return blocks_[static_cast<std::size_t>(b)]; }
  const Node& node(Block b) const { return blocks_[static_cast<std::size_t>(b)]; }
  static FreeList::iterator at_least(FreeList& list, std::int64_t size);
  std::vector<Block>::iterator place(std::vector<Block>& blocks, std::int64_t address);
  Block new_node();
  void insert_free(Block block);
  void remove_free(Block block);
  Block cut(Block block, std::int64_t bytes);   // the rest becomes a block of its own, not yet in a list
  void absorb_next(Block block);                // the next block's bytes become this one's
  Block best_fit(std::int64_t bytes, int pool);
  bool expands(int pool) const { return options_.expandable_segments && pool / 2 != options_.rigid_stream; }
  bool room(std::int64_t bytes) const { return options_.limit <= 0 || reserved_ + bytes <= options_.limit; }
  Block take(std::int64_t bytes, int pool);     // kNone: the driver has no more
  Block take_segment(std::int64_t bytes, int pool);
  Block extend(std::int64_t bytes, int pool);
  Block expandable_candidate(std::int64_t bytes, int pool);
  Block map(Block unmapped, std::int64_t bytes);
  void give_back(Block block);
  void release_cached();
  void unmap(Block block);

  Options options_;
  std::vector<Node> blocks_;
  std::vector<Block> unused_;                   // numbers to use again
  FreeList free_[2 * kStreams];                 // by pool: 2 x stream + (0 small, 1 large)
  std::vector<std::vector<Block>> spare_;       // emptied lists, to use their memory again
  std::vector<Block> unmapped_[2 * kStreams];   // by address
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps_;  // addresses that freed segments left: start, end
  std::int64_t top_ = 0;                        // addresses given out so far
  std::int64_t allocated_ = 0, reserved_ = 0, allocated_peak_ = 0, reserved_peak_ = 0;
  std::vector<Block> held_;
  std::int64_t settled_all_ = 0;
  bool ran_out_ = false;
};

}  // namespace shardfit::memory
