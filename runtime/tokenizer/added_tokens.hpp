// Tokens that are taken out of the text before anything else: special ones and others that were added to the
// vocabulary.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardfit::tokenizer {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

// A set of added tokens to look for in text: leftmost first, the longest of those that begin there (added_vocabulary.rs
// of `tokenizers`).
class AddedTokens {
 public:
  void add(const AddedToken& token,
           std::string_view spelling);  // spelling: content, normalized where the token asks for it
  bool empty() const { return tokens_.empty(); }
  // Calls `text_part` with the text between tokens and `token` with each token, in order.
  void split(std::string_view text, const std::function<void(std::string_view)>& text_part,
             const std::function<void(std::int32_t)>& token) const;

 private:
  struct Node {
    std::unordered_map<char, int> next;
    int token = -1;
  };
  struct Match {
    std::size_t length = 0;
    int token = -1;
  };
  Match longest_at(std::string_view text, std::size_t at) const;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> begins_{};
  std::vector<AddedToken> tokens_;
};

}  // namespace shardfit::tokenizer
