// The pre-tokenizer of a tokenizer.json: cuts text into the words that BPE then encodes one by one.
#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/pattern.hpp"

namespace shardfit::tokenizer {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// What a splitter makes of its text: pieces that cover it, each a match or not.
struct Piece {
  std::size_t begin, end;
  bool match;
};
// Applies a behaviour to covering pieces, as NormalizedString::split of the library `tokenizers` does: merges or drops
// matches.
std::vector<Piece> join_pieces(SplitBehavior behavior, const std::vector<Piece>& pieces);

class PreTokenizer {
 public:
  // `json`: the "pre_tokenizer" of a tokenizer.json. Throws Error{tokenizer_unsupported} naming the type; among others
  // where the last step is not byte-level.
  explicit PreTokenizer(const nlohmann::json& json);
  PreTokenizer(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Calls `word` with each word of `text` (valid UTF-8), in order.
  void split(std::string_view text, const std::function<void(std::string_view)>& word) const;

 private:
  struct Step;
  void add(const nlohmann::json& json, int depth = 0);
  void run(std::size_t step, std::string_view text, const std::function<void(std::string_view)>& word) const;
  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace shardfit::tokenizer
