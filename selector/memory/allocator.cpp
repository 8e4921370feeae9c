#include "selector/memory/allocator.hpp"

#include <algorithm>
#include <functional>

namespace shardfit::memory {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMinBlock = 512;          // kMinBlockSize
constexpr std::int64_t kSmallSize = kMiB;        // largest "small" allocation
constexpr std::int64_t kSmallBuffer = 2 * kMiB;
constexpr std::int64_t kLargeBuffer = 20 * kMiB;
constexpr std::int64_t kMinLargeAlloc = 10 * kMiB;
constexpr std::int64_t kRoundLarge = 2 * kMiB;

std::int64_t round_up(std::int64_t bytes, std::int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::int64_t CachingAllocator::cached(int stream) const {
  std::int64_t sum = 0;
  for (int pool : {2 * stream, 2 * stream + 1})
    for (const auto& c : free_[pool]) sum += c.size * static_cast<std::int64_t>(c.blocks.size());
  return sum;
}

CachingAllocator::Block CachingAllocator::new_node() {
  if (!unused_.empty()) {
    const Block b = unused_.back();
    unused_.pop_back();
    blocks_[static_cast<std::size_t>(b)] = Node{};
    return b;
  }
  blocks_.emplace_back();
  return static_cast<Block>(blocks_.size() - 1);
}

CachingAllocator::FreeList::iterator CachingAllocator::at_least(FreeList& list, std::int64_t size) {
  return std::lower_bound(list.begin(), list.end(), size, [](const SizeClass& c, std::int64_t n) { return c.size < n; });
}

void CachingAllocator::insert_free(Block block) {
  const auto& node = blocks_[static_cast<std::size_t>(block)];
  auto& list = free_[node.pool];
  auto at = at_least(list, node.size);
  if (at == list.end() || at->size != node.size) {
    SizeClass fresh;
    fresh.size = node.size;
    if (!spare_.empty()) {
      fresh.blocks.swap(spare_.back());
      spare_.pop_back();
    }
    at = list.insert(at, std::move(fresh));
  }
  at->blocks.insert(std::lower_bound(at->blocks.begin(), at->blocks.end(), block, std::greater<>()), block);
}

void CachingAllocator::remove_free(Block block) {
  const auto& node = blocks_[static_cast<std::size_t>(block)];
  auto& list = free_[node.pool];
  const auto at = at_least(list, node.size);
  at->blocks.erase(std::lower_bound(at->blocks.begin(), at->blocks.end(), block, std::greater<>()));
  if (at->blocks.empty()) {
    spare_.push_back(std::move(at->blocks));
    list.erase(at);
  }
}

CachingAllocator::Block CachingAllocator::take_segment(std::int64_t bytes, int pool, bool small) {
  const std::int64_t segment = small ? kSmallBuffer : bytes < kMinLargeAlloc ? kLargeBuffer : round_up(bytes, kRoundLarge);
  const Block b = new_node();
  auto& node = blocks_[static_cast<std::size_t>(b)];
  node.size = segment;
  node.pool = static_cast<std::int16_t>(pool);
  reserved_ += segment;
  return b;
}

// expandable_segments: one virtual range a pool; pages are mapped at its end, in units of the segment size.
CachingAllocator::Block CachingAllocator::extend_tail(std::int64_t bytes, int pool, bool small) {
  const std::int64_t unit = small ? kSmallBuffer : kLargeBuffer;
  const Block tail = tail_[pool];
  if (tail >= 0 && blocks_[static_cast<std::size_t>(tail)].is_free) {
    remove_free(tail);
    auto& node = blocks_[static_cast<std::size_t>(tail)];
    const std::int64_t more = round_up(bytes - node.size, unit);
    node.size += more;
    reserved_ += more;
    return tail;
  }
  const Block b = new_node();
  auto& node = blocks_[static_cast<std::size_t>(b)];
  node.size = round_up(bytes, unit);
  node.pool = static_cast<std::int16_t>(pool);
  node.previous = tail;
  if (tail >= 0) blocks_[static_cast<std::size_t>(tail)].next = b;
  tail_[pool] = b;
  reserved_ += node.size;
  return b;
}

void CachingAllocator::release_cached() {
  std::vector<Block> gone;
  std::int64_t left = reserved_ - options_.limit;
  for (auto& list : free_) {
    for (auto c = list.rbegin(); c != list.rend() && left > 0; ++c) {   // largest first
      for (const Block b : c->blocks) {
        if (left <= 0) break;
        const auto& node = blocks_[static_cast<std::size_t>(b)];
        const bool whole = node.previous < 0 && node.next < 0;
        // expandable segments give back pages; the replay lets go of a segment's free end only
        if (!whole && !(options_.expandable_segments && tail_[node.pool] == b)) continue;
        gone.push_back(b);
        left -= node.size;
      }
    }
  }
  for (const Block b : gone) {
    remove_free(b);
    const auto& node = blocks_[static_cast<std::size_t>(b)];
    reserved_ -= node.size;
    if (tail_[node.pool] == b) {
      tail_[node.pool] = node.previous;
      if (node.previous >= 0) blocks_[static_cast<std::size_t>(node.previous)].next = -1;
    }
    unused_.push_back(b);
  }
}

CachingAllocator::Block CachingAllocator::allocate(std::int64_t bytes, int stream) {
  bytes = std::max(round_up(bytes, kMinBlock), kMinBlock);
  const bool small = bytes <= kSmallSize;
  const int pool = stream * 2 + (small ? 0 : 1);
  auto& list = free_[pool];
  Block b;
  const auto fit = at_least(list, bytes);
  if (fit != list.end()) {
    b = fit->blocks.back();
    fit->blocks.pop_back();
    if (fit->blocks.empty()) {
      spare_.push_back(std::move(fit->blocks));
      list.erase(fit);
    }
  } else {
    b = options_.expandable_segments ? extend_tail(bytes, pool, small) : take_segment(bytes, pool, small);
    if (options_.limit > 0 && reserved_ > options_.limit) {
      release_cached();
      if (reserved_ > options_.limit) {
        ran_out_ = true;
        options_.limit = 0;              // the verdict stands; what follows only measures by how much
      }
    }
    reserved_peak_ = std::max(reserved_peak_, reserved_);
  }
  const std::int64_t rest = blocks_[static_cast<std::size_t>(b)].size - bytes;
  blocks_[static_cast<std::size_t>(b)].is_free = false;
  if (small || options_.expandable_segments ? rest >= kMinBlock : rest > kSmallSize) {
    const Block r = new_node();
    auto& node = blocks_[static_cast<std::size_t>(b)];
    auto& other = blocks_[static_cast<std::size_t>(r)];
    other.size = rest;
    other.pool = node.pool;
    other.previous = b;
    other.next = node.next;
    other.is_free = true;
    if (node.next >= 0) blocks_[static_cast<std::size_t>(node.next)].previous = r;
    node.next = r;
    node.size = bytes;
    if (tail_[pool] == b && options_.expandable_segments) tail_[pool] = r;
    insert_free(r);
  }
  allocated_ += blocks_[static_cast<std::size_t>(b)].size;
  allocated_peak_ = std::max(allocated_peak_, allocated_);
  return b;
}

void CachingAllocator::free(Block block) {
  auto at = [this](Block b) -> Node& { return blocks_[static_cast<std::size_t>(b)]; };
  allocated_ -= at(block).size;
  at(block).is_free = true;
  const Block next = at(block).next;
  if (next >= 0 && at(next).is_free) {
    remove_free(next);
    at(block).size += at(next).size;
    at(block).next = at(next).next;
    if (at(next).next >= 0) at(at(next).next).previous = block;
    if (tail_[at(block).pool] == next) tail_[at(block).pool] = block;
    unused_.push_back(next);
  }
  const Block previous = at(block).previous;
  if (previous >= 0 && at(previous).is_free) {
    remove_free(previous);
    at(previous).size += at(block).size;
    at(previous).next = at(block).next;
    if (at(block).next >= 0) at(at(block).next).previous = previous;
    if (tail_[at(block).pool] == block) tail_[at(block).pool] = previous;
    unused_.push_back(block);
    block = previous;
  }
  insert_free(block);
}

}  // namespace shardfit::memory
