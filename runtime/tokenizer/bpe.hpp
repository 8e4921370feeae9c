// Byte-pair encoding of one word: the lowest-ranked merge first, the leftmost where several are equal. Words seen are
// kept in a cache of bounded size.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardfit::tokenizer {

using TokenId = std::int32_t;

class Bpe {
 public:
  struct Merge {
    TokenId left, right, result;
  };
  // `by_bytes`: the vocabulary by the bytes each token spells. `merges` in order of rank. `unknown`: -1, or the token
  // of bytes that the vocabulary lacks. `whole_words`: a word that is a token is taken as it is (ignore_merges).
  Bpe(std::unordered_map<std::string, TokenId> by_bytes, const std::vector<Merge>& merges, TokenId unknown,
      bool fuse_unknown, bool whole_words);
  Bpe(Bpe&&) noexcept;
  ~Bpe();

  // Appends the ids of `word` (bytes). Safe from several threads.
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  struct Merged {
    std::uint64_t pair;
    std::uint32_t rank;
    TokenId result;
  };
  struct Cache;
  const Merged* find(TokenId left, TokenId right) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(std::vector<TokenId>& symbols) const;

  std::unordered_map<std::string, TokenId> by_bytes_;
  TokenId of_byte_[256];
  std::vector<Merged> table_;  // open addressing; pair kEmpty = free
  std::size_t mask_ = 0;
  TokenId unknown_;
  bool fuse_unknown_, whole_words_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace shardfit::tokenizer
