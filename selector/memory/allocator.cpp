#include "selector/memory/allocator.hpp"

#include <algorithm>

namespace shardfit::memory {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMinBlock = 512;          // kMinBlockSize
constexpr std::int64_t kSmallSize = kMiB;        // largest "small" allocation
constexpr std::int64_t kSmallBuffer = 2 * kMiB;
constexpr std::int64_t kLargeBuffer = 20 * kMiB;
constexpr std::int64_t kMinLargeAlloc = 10 * kMiB;
constexpr std::int64_t kRoundLarge = 2 * kMiB;
constexpr std::int64_t kAddresses = std::int64_t{1} << 50;   // of an expandable segment: more than any device has

std::int64_t round_up(std::int64_t bytes, std::int64_t unit) { return (bytes + unit - 1) / unit * unit; }
bool is_small(int pool) { return pool % 2 == 0; }

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
    node(b) = Node{};
    return b;
  }
  blocks_.emplace_back();
  return static_cast<Block>(blocks_.size() - 1);
}

CachingAllocator::FreeList::iterator CachingAllocator::at_least(FreeList& list, std::int64_t size) {
  return std::lower_bound(list.begin(), list.end(), size, [](const SizeClass& c, std::int64_t n) { return c.size < n; });
}

std::vector<CachingAllocator::Block>::iterator CachingAllocator::place(std::vector<Block>& blocks, std::int64_t address) {
  // mostly the lowest or the highest
  if (blocks.empty() || node(blocks.back()).address > address) return blocks.end();
  if (blocks.size() == 1 || node(blocks.front()).address <= address) return blocks.begin();
  if (node(blocks[blocks.size() - 2]).address > address) return blocks.end() - 1;
  return std::lower_bound(blocks.begin(), blocks.end(), address, [this](Block b, std::int64_t a) { return node(b).address > a; });
}

void CachingAllocator::insert_free(Block block) {
  auto& n = node(block);
  n.is_free = true;
  auto& list = free_[n.pool];
  auto at = at_least(list, n.size);
  if (at == list.end() || at->size != n.size) {
    SizeClass fresh;
    fresh.size = n.size;
    if (!spare_.empty()) {
      fresh.blocks.swap(spare_.back());
      spare_.pop_back();
    }
    at = list.insert(at, std::move(fresh));
  }
  at->blocks.insert(place(at->blocks, n.address), block);
}

void CachingAllocator::remove_free(Block block) {
  auto& n = node(block);
  n.is_free = false;
  auto& list = free_[n.pool];
  const auto at = at_least(list, n.size);
  at->blocks.erase(place(at->blocks, n.address));
  if (at->blocks.empty()) {
    spare_.push_back(std::move(at->blocks));
    list.erase(at);
  }
}

CachingAllocator::Block CachingAllocator::cut(Block block, std::int64_t bytes) {
  const Block r = new_node();
  auto& n = node(block);
  auto& rest = node(r);
  rest.size = n.size - bytes;
  rest.address = n.address + bytes;
  rest.pool = n.pool;
  rest.mapped = n.mapped;
  rest.previous = block;
  rest.next = n.next;
  if (n.next != kNone) node(n.next).previous = r;
  n.next = r;
  n.size = bytes;
  return r;
}

void CachingAllocator::absorb_next(Block block) {
  auto& n = node(block);
  const Block gone = n.next;
  n.size += node(gone).size;
  n.next = node(gone).next;
  if (n.next != kNone) node(n.next).previous = block;
  unused_.push_back(gone);
}

// get_free_block: the smallest that is large enough. A block that can grow into addresses without memory counts as large as it
// could become, so that a larger one without such a neighbour is preferred.
CachingAllocator::Block CachingAllocator::best_fit(std::int64_t bytes, int pool) {
  auto& list = free_[pool];
  const auto fit = at_least(list, bytes);
  if (fit == list.end()) return kNone;
  Block found = fit->blocks.back();
  if (expands(pool)) {
    const auto could_be = [this](Block b) {
      const auto& n = node(b);
      return n.size + (n.next != kNone && !node(n.next).mapped ? node(n.next).size : 0);
    };
    auto c = fit;
    auto b = c->blocks.rbegin();
    while (true) {
      if (++b == c->blocks.rend()) {
        if (++c == list.end()) break;
        b = c->blocks.rbegin();
      }
      if (could_be(*b) >= could_be(found)) break;
      found = *b;
    }
  }
  remove_free(found);
  return found;
}

// A segment from the driver, which gives the lowest addresses that are free.
CachingAllocator::Block CachingAllocator::take_segment(std::int64_t bytes, int pool) {
  const std::int64_t segment = is_small(pool) ? kSmallBuffer : bytes < kMinLargeAlloc ? kLargeBuffer : round_up(bytes, kRoundLarge);
  if (!room(segment)) return kNone;
  const Block b = new_node();
  auto& n = node(b);
  n.size = segment;
  n.pool = static_cast<std::int16_t>(pool);
  const auto gap = std::find_if(gaps_.begin(), gaps_.end(), [&](const auto& g) { return g.second - g.first >= segment; });
  if (gap != gaps_.end()) {
    n.address = gap->first;
    gap->first += segment;
    if (gap->first == gap->second) gaps_.erase(gap);
  } else {
    if (!gaps_.empty() && gaps_.back().second == top_) {
      top_ = gaps_.back().first;
      gaps_.pop_back();
    }
    n.address = top_;
    top_ += segment;
  }
  reserved_ += segment;
  return b;
}

// find_expandable_block: the lowest addresses without memory which, with the free blocks beside them, are wide enough.
CachingAllocator::Block CachingAllocator::expandable_candidate(std::int64_t bytes, int pool) {
  const auto usable = [this](Block b) { return b != kNone && (node(b).is_free || !node(b).mapped); };
  auto& unmapped = unmapped_[pool];
  for (const Block u : unmapped) {
    const Block first = usable(node(u).previous) ? node(u).previous : u;
    std::int64_t sum = 0;
    for (Block b = first; sum < bytes && usable(b); b = node(b).next) sum += node(b).size;
    if (sum >= bytes) return first;
  }
  const Block b = new_node();
  auto& n = node(b);
  n.size = std::max(kAddresses, round_up(bytes, kLargeBuffer));
  n.pool = static_cast<std::int16_t>(pool);
  n.mapped = false;
  unmapped.push_back(b);
  return b;
}

// map_block: gives memory to the first `bytes` of a range of addresses; the free block that results, merged with its neighbours.
CachingAllocator::Block CachingAllocator::map(Block block, std::int64_t bytes) {
  const int pool = node(block).pool;
  const std::int64_t mapped = round_up(bytes, is_small(pool) ? kSmallBuffer : kLargeBuffer);
  if (!room(mapped)) return kNone;
  auto& unmapped = unmapped_[pool];
  const auto at = std::find(unmapped.begin(), unmapped.end(), block);
  if (mapped < node(block).size)
    *at = cut(block, mapped);
  else
    unmapped.erase(at);
  node(block).mapped = true;
  reserved_ += mapped;
  if (const Block p = node(block).previous; p != kNone && node(p).is_free) {
    remove_free(p);
    absorb_next(p);
    block = p;
  }
  if (const Block n = node(block).next; n != kNone && node(n).is_free) {
    remove_free(n);
    absorb_next(block);
  }
  insert_free(block);
  return block;
}

CachingAllocator::Block CachingAllocator::extend(std::int64_t bytes, int pool) {
  Block b = expandable_candidate(bytes, pool);
  if (!node(b).mapped) b = map(b, std::min(node(b).size, bytes));
  while (b != kNone && node(b).size < bytes) b = map(node(b).next, std::min(bytes - node(b).size, node(node(b).next).size));
  if (b != kNone) remove_free(b);
  return b;
}

CachingAllocator::Block CachingAllocator::take(std::int64_t bytes, int pool) {
  const Block b = expands(pool) ? extend(bytes, pool) : take_segment(bytes, pool);
  reserved_peak_ = std::max(reserved_peak_, reserved_);
  return b;
}

// unmap_block: whole steps within a free block lose their memory; what lies before and after stays a free block.
void CachingAllocator::unmap(Block block) {
  const int pool = node(block).pool;
  const std::int64_t step = is_small(pool) ? kSmallBuffer : kLargeBuffer;
  const std::int64_t begin = round_up(node(block).address, step), end = (node(block).address + node(block).size) / step * step;
  if (begin >= end) return;
  remove_free(block);
  if (const std::int64_t after = node(block).address + node(block).size - end; after > 0) insert_free(cut(block, node(block).size - after));
  if (const std::int64_t before = begin - node(block).address; before > 0) {
    const Block rest = cut(block, before);
    insert_free(block);
    block = rest;
  }
  node(block).mapped = false;
  reserved_ -= end - begin;
  auto& unmapped = unmapped_[pool];
  const auto forget = [&](Block b) { unmapped.erase(std::find(unmapped.begin(), unmapped.end(), b)); };
  if (const Block p = node(block).previous; p != kNone && !node(p).mapped) {
    forget(p);
    absorb_next(p);
    block = p;
  }
  if (const Block n = node(block).next; n != kNone && !node(n).mapped) {
    forget(n);
    absorb_next(block);
  }
  unmapped.insert(std::lower_bound(unmapped.begin(), unmapped.end(), node(block).address, [this](Block b, std::int64_t a) { return node(b).address < a; }),
                  block);
}

// release_cached_blocks: after waiting for the device, every segment that is free as a whole.
void CachingAllocator::release_cached() {
  for (const Block b : held_) give_back(b);
  held_.clear();
  ++settled_all_;
  std::vector<Block> gone;
  for (auto& list : free_)
    for (const auto& c : list)
      for (const Block b : c.blocks)
        if (expands(node(b).pool) || (node(b).previous == kNone && node(b).next == kNone)) gone.push_back(b);
  for (const Block b : gone) {
    if (expands(node(b).pool)) {
      unmap(b);
      continue;
    }
    remove_free(b);
    const auto& n = node(b);
    reserved_ -= n.size;
    auto at = std::lower_bound(gaps_.begin(), gaps_.end(), std::pair{n.address, n.address});
    at = gaps_.insert(at, {n.address, n.address + n.size});
    if (std::next(at) != gaps_.end() && std::next(at)->first == at->second) {
      at->second = std::next(at)->second;
      gaps_.erase(std::next(at));
    }
    if (at != gaps_.begin() && std::prev(at)->second == at->first) {
      std::prev(at)->second = at->second;
      gaps_.erase(at);
    }
    unused_.push_back(b);
  }
}

CachingAllocator::Block CachingAllocator::allocate(std::int64_t bytes, int stream) {
  bytes = std::max(round_up(bytes, kMinBlock), kMinBlock);
  const bool small = bytes <= kSmallSize;
  const int pool = stream * 2 + (small ? 0 : 1);
  Block b = best_fit(bytes, pool);
  if (b == kNone) b = take(bytes, pool);
  if (b == kNone) {
    release_cached();
    b = take(bytes, pool);
  }
  if (b == kNone) {
    ran_out_ = true;
    options_.limit = 0;                    // the verdict stands; what follows only measures by how much
    b = take(bytes, pool);
  }
  const std::int64_t rest = node(b).size - bytes;
  if (small || expands(pool) ? rest >= kMinBlock : rest > kSmallSize) insert_free(cut(b, bytes));
  allocated_ += node(b).size;
  allocated_peak_ = std::max(allocated_peak_, allocated_);
  return b;
}

void CachingAllocator::free(Block block) {
  allocated_ -= node(block).size;
  give_back(block);
}

void CachingAllocator::hold(Block block) {
  allocated_ -= node(block).size;
  held_.push_back(block);
}

void CachingAllocator::settle(Block block) {
  held_.erase(std::find(held_.begin(), held_.end(), block));
  give_back(block);
}

void CachingAllocator::give_back(Block block) {
  if (const Block next = node(block).next; next != kNone && node(next).is_free) {
    remove_free(next);
    absorb_next(block);
  }
  if (const Block previous = node(block).previous; previous != kNone && node(previous).is_free) {
    remove_free(previous);
    absorb_next(previous);
    block = previous;
  }
  insert_free(block);
}

}  // namespace shardfit::memory
