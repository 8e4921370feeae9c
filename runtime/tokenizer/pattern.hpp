// The regular expressions of tokenizer.json's Split: alternatives, groups (also (?i:...)), character classes with
// Unicode categories, quantifiers (greedy, lazy, possessive), lookahead, anchors. Matched by backtracking on UTF-8,
// leftmost, first alternative first, as Oniguruma does.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace shardfit::tokenizer {

class Pattern {
 public:
  // Throws Error{tokenizer_unsupported} naming the construct that is not understood.
  explicit Pattern(std::string_view regex);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // The first match in `text` (valid UTF-8) at or after byte `from`, as [begin, end); nullopt if there is none. Empty
  // matches are passed over.
  std::optional<std::pair<std::size_t, std::size_t>> find(std::string_view text, std::size_t from) const;

  struct Program;

 private:
  std::unique_ptr<Program> program_;
};

}  // namespace shardfit::tokenizer
