#include "runtime/tokenizer/bpe.hpp"

#include <array>
#include <limits>
#include <mutex>
#include <queue>
#include <shared_mutex>

namespace shardfit::tokenizer {
namespace {

constexpr std::uint64_t kEmpty = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kShortWord = 24;                        // symbols; longer ones go through a queue
constexpr std::size_t kCachedWord = 48;                       // bytes
constexpr std::size_t kCacheShards = 64, kCacheWords = 2048;  // a shard

std::uint64_t pair_of(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 29;
}

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

}  // namespace

struct Bpe::Cache {
  struct Shard {
    std::shared_mutex mutex;
    std::unordered_map<std::string, std::vector<TokenId>, TextHash, std::equal_to<>> words;
  };
  std::array<Shard, kCacheShards> shards;
  Shard& of(std::string_view word) { return shards[(std::hash<std::string_view>{}(word) >> 20) % kCacheShards]; }
};

Bpe::Bpe(std::unordered_map<std::string, TokenId> by_bytes, const std::vector<Merge>& merges, TokenId unknown,
         bool fuse_unknown, bool whole_words)
    : by_bytes_(std::move(by_bytes)),
      unknown_(unknown),
      fuse_unknown_(fuse_unknown),
      whole_words_(whole_words),
      cache_(std::make_unique<Cache>()) {
  for (int b = 0; b < 256; ++b) {
    const auto found = by_bytes_.find(std::string(1, static_cast<char>(b)));
    of_byte_[b] = found == by_bytes_.end() ? -1 : found->second;
  }
  std::size_t size = 16;
  while (size < merges.size() * 2) size *= 2;
  mask_ = size - 1;
  table_.assign(size, Merged{kEmpty, 0, 0});
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    std::size_t slot = mix(pair) & mask_;
    while (table_[slot].pair != kEmpty && table_[slot].pair != pair) slot = (slot + 1) & mask_;
    table_[slot] = {pair, static_cast<std::uint32_t>(rank),
                    merges[rank].result};  // a pair given twice: the later one stands
  }
}
Bpe::Bpe(Bpe&&) noexcept = default;
Bpe::~Bpe() = default;

const Bpe::Merged* Bpe::find(TokenId left, TokenId right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t slot = mix(pair) & mask_;; slot = (slot + 1) & mask_) {
    if (table_[slot].pair == pair) return &table_[slot];
    if (table_[slot].pair == kEmpty) return nullptr;
  }
}

void Bpe::merge_short(std::vector<TokenId>& symbols) const {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::array<std::uint32_t, kShortWord> rank;
  std::array<TokenId, kShortWord> result;
  std::size_t n = symbols.size();
  const auto look = [&](std::size_t i) {
    const Merged* merged = i + 1 < n ? find(symbols[i], symbols[i + 1]) : nullptr;
    rank[i] = merged ? merged->rank : kNone;
    result[i] = merged ? merged->result : 0;
  };
  for (std::size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (rank[i] < rank[best]) best = i;
    if (rank[best] == kNone) break;
    symbols[best] = result[best];
    for (std::size_t i = best + 1; i + 1 < n; ++i)
      symbols[i] = symbols[i + 1], rank[i] = rank[i + 1], result[i] = result[i + 1];
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  symbols.resize(n);
}

void Bpe::merge_long(std::vector<TokenId>& symbols) const {
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t at;
    TokenId left, right, result;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const std::size_t n = symbols.size();
  constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> before(n), after(n);
  std::vector<char> gone(n, 0);
  std::vector<Candidate> first;
  const auto candidate = [&](std::uint32_t at, auto&& push) {
    const std::uint32_t next = after[at];
    if (next == kEnd) return;
    if (const Merged* merged = find(symbols[at], symbols[next]))
      push(Candidate{merged->rank, at, symbols[at], symbols[next], merged->result});
  };
  for (std::size_t i = 0; i < n; ++i) {
    before[i] = i == 0 ? kEnd : static_cast<std::uint32_t>(i - 1);
    after[i] = i + 1 == n ? kEnd : static_cast<std::uint32_t>(i + 1);
  }
  for (std::uint32_t i = 0; i < n; ++i) candidate(i, [&](Candidate c) { first.push_back(c); });
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{}, std::move(first));
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const std::uint32_t next = after[c.at];
    if (gone[c.at] || next == kEnd || symbols[c.at] != c.left || symbols[next] != c.right)
      continue;  // overtaken by another merge
    symbols[c.at] = c.result;
    gone[next] = 1;
    after[c.at] = after[next];
    if (after[next] != kEnd) before[after[next]] = c.at;
    const auto push = [&](Candidate found) { queue.push(found); };
    candidate(c.at, push);
    if (before[c.at] != kEnd) candidate(before[c.at], push);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != kEnd; i = after[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& out) const {
  if (word.empty()) return;
  const bool cached = word.size() <= kCachedWord;
  Cache::Shard* shard = cached ? &cache_->of(word) : nullptr;
  if (cached) {
    const std::shared_lock lock(shard->mutex);
    if (const auto found = shard->words.find(word); found != shard->words.end()) {
      out.insert(out.end(), found->second.begin(), found->second.end());
      return;
    }
  }
  std::vector<TokenId> symbols;
  if (const auto whole = whole_words_ ? by_bytes_.find(std::string(word)) : by_bytes_.end(); whole != by_bytes_.end()) {
    symbols.push_back(whole->second);
  } else {
    symbols.reserve(word.size());
    bool was_unknown = false;
    for (const char b : word) {
      const TokenId id = of_byte_[static_cast<unsigned char>(b)];
      if (id >= 0) symbols.push_back(id);
      else if (unknown_ >= 0 && !(fuse_unknown_ && was_unknown)) symbols.push_back(unknown_);
      was_unknown = id < 0;
    }
    if (symbols.size() <= kShortWord) merge_short(symbols);
    else merge_long(symbols);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (cached) {
    const std::unique_lock lock(shard->mutex);
    if (shard->words.size() < kCacheWords) shard->words.emplace(std::string(word), std::move(symbols));
  }
}

}  // namespace shardfit::tokenizer
