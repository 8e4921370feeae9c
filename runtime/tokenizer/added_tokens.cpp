#include "runtime/tokenizer/added_tokens.hpp"

#include <algorithm>

#include "runtime/tokenizer/unicode.hpp"

namespace shardfit::tokenizer {
namespace {

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool is_word(CodePoint v) {
  static const std::uint32_t mask = category_mask("L") | category_mask("M") | category_mask("N") | category_mask("Pc");
  return (category_bit(v) & mask) != 0;
}

}  // namespace

void AddedTokens::add(const AddedToken& token, std::string_view spelling) {
  if (spelling.empty()) return;
  int node = 0;
  for (const char c : spelling) {
    const auto found = nodes_[static_cast<std::size_t>(node)].next.find(c);
    if (found != nodes_[static_cast<std::size_t>(node)].next.end()) {
      node = found->second;
      continue;
    }
    const int fresh = static_cast<int>(nodes_.size());
    nodes_[static_cast<std::size_t>(node)].next.emplace(c, fresh);
    nodes_.emplace_back();
    node = fresh;
  }
  begins_[static_cast<unsigned char>(spelling[0])] = true;
  if (nodes_[static_cast<std::size_t>(node)].token < 0) {
    nodes_[static_cast<std::size_t>(node)].token = static_cast<int>(tokens_.size());
    tokens_.push_back(token);
  }
}

AddedTokens::Match AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  Match match;
  int node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto& next = nodes_[static_cast<std::size_t>(node)].next;
    const auto found = next.find(text[i]);
    if (found == next.end()) break;
    node = found->second;
    if (const int token = nodes_[static_cast<std::size_t>(node)].token; token >= 0) match = {i + 1 - at, token};
  }
  return match;
}

void AddedTokens::split(std::string_view text, const std::function<void(std::string_view)>& text_part,
                        const std::function<void(std::int32_t)>& token) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest_at(text, at);
    if (match.token < 0) {
      ++at;
      continue;
    }
    const AddedToken& found = tokens_[static_cast<std::size_t>(match.token)];
    std::size_t begin = at, end = at + match.length;
    at = end;
    if (found.single_word) {
      const bool word_before = begin > 0 && is_word(decode_at(text, last_character(text.substr(0, begin))).value);
      const bool word_after = end < text.size() && is_word(decode_at(text, end).value);
      if (word_before || word_after) continue;
    }
    if (found.lstrip) {
      while (begin > done) {
        const std::size_t before = last_character(text.substr(0, begin));
        if (before < done || !is_space(decode_at(text, before).value)) break;
        begin = before;
      }
    }
    if (found.rstrip)
      while (end < text.size()) {
        const Decoded d = decode_at(text, end);
        if (!is_space(d.value)) break;
        end += d.length;
      }
    if (begin > done) text_part(text.substr(done, begin - done));
    token(found.id);
    done = end;
    at = std::max(at, end);
  }
  if (done < text.size()) text_part(text.substr(done));
}

}  // namespace shardfit::tokenizer
