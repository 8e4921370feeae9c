// What a tokenizer asks of Unicode: code points of UTF-8, general categories, white space, normal forms. Tables are
// utf8proc's.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shardfit::tokenizer {

using CodePoint = std::uint32_t;

// The code point at `text[at]` and its length in bytes; `text` is valid UTF-8 and at < text.size().
struct Decoded {
  CodePoint value;
  std::uint32_t length;
};
inline Decoded decode_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}
void append_utf8(std::string& text, CodePoint value);

bool is_ascii(std::string_view text);
bool is_utf8(std::string_view text);
// Each longest part that is not UTF-8 becomes one U+FFFD (the rule of the Unicode standard, chapter 3.9, and of Rust
// and Python).
std::string replace_invalid_utf8(std::string_view text);

// General category as a bit: 1 << utf8proc_category. Groups below are unions of these.
std::uint32_t category_bit(CodePoint value);
// "L", "Lu", "N", "Nd", ... -> the union of category bits; 0 for a name that is none.
std::uint32_t category_mask(std::string_view name);
bool is_space(CodePoint value);        // property White_Space
bool is_numeric(CodePoint value);      // categories Nd, Nl, No
bool is_punctuation(CodePoint value);  // ASCII punctuation or a category P
CodePoint lower(CodePoint value);      // simple case folding for comparisons
CodePoint upper(CodePoint value);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize(std::string_view text, NormalForm form);  // `text` is valid UTF-8

}  // namespace shardfit::tokenizer
