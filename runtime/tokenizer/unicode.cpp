#include "runtime/tokenizer/unicode.hpp"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "regions/base/error.hpp"

namespace shardfit::tokenizer {

void append_utf8(std::string& text, CodePoint value) {
  if (value < 0x80) {
    text += static_cast<char>(value);
  } else if (value < 0x800) {
    text += static_cast<char>(0xC0 | value >> 6);
    text += static_cast<char>(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    text += static_cast<char>(0xE0 | value >> 12);
    text += static_cast<char>(0x80 | (value >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (value & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | value >> 18);
    text += static_cast<char>(0x80 | (value >> 12 & 0x3F));
    text += static_cast<char>(0x80 | (value >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (value & 0x3F));
  }
}

bool is_ascii(std::string_view text) {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) return false;
  }
  for (; i < text.size(); ++i)
    if (static_cast<unsigned char>(text[i]) >= 0x80) return false;
  return true;
}

namespace {

// Length of the valid sequence at `at`, or 0; then `bad` is the length of the longest part that begins a valid sequence
// (>= 1). Table 3-7 of the Unicode standard.
std::size_t sequence_at(std::string_view text, std::size_t at, std::size_t& bad) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[at + i])); };
  const unsigned first = byte(0);
  bad = 1;
  if (first < 0x80) return 1;
  unsigned low = 0x80, high = 0xBF;
  std::size_t length = 0;
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(i) < low || byte(i) > high) return 0;
    low = 0x80, high = 0xBF;
    bad = i + 1;
  }
  return length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  if (is_ascii(text)) return true;
  std::size_t bad = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_at(text, at, bad);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t bad = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_at(text, at, bad);
    if (length != 0) {
      out.append(text.substr(at, length));
      at += length;
    } else {
      append_utf8(out, 0xFFFD);
      at += bad;
    }
  }
  return out;
}

std::uint32_t category_bit(CodePoint value) { return 1u << utf8proc_category(static_cast<utf8proc_int32_t>(value)); }

std::uint32_t category_mask(std::string_view name) {
  static constexpr std::array<const char*, 30> kNames = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                                         "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                                         "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i] || (name.size() == 1 && name[0] == kNames[i][0])) mask |= 1u << i;
  if (name == "Letter") return category_mask("L");
  if (name == "Number") return category_mask("N");
  if (name == "Punctuation") return category_mask("P");
  if (name == "Symbol") return category_mask("S");
  if (name == "Mark") return category_mask("M");
  if (name == "Separator") return category_mask("Z");
  return mask;
}

bool is_space(CodePoint v) {
  if (v < 0x80) return v == ' ' || (v >= 9 && v <= 13);
  return v == 0x85 || v == 0xA0 || v == 0x1680 || (v >= 0x2000 && v <= 0x200A) || v == 0x2028 || v == 0x2029 ||
         v == 0x202F || v == 0x205F || v == 0x3000;
}

bool is_numeric(CodePoint v) {
  if (v < 0x80) return v >= '0' && v <= '9';
  static const std::uint32_t mask = category_mask("N");
  return (category_bit(v) & mask) != 0;
}

bool is_punctuation(CodePoint v) {
  if (v < 0x80) return (v >= 33 && v <= 47) || (v >= 58 && v <= 64) || (v >= 91 && v <= 96) || (v >= 123 && v <= 126);
  static const std::uint32_t mask = category_mask("P");
  return (category_bit(v) & mask) != 0;
}

CodePoint lower(CodePoint v) {
  if (v < 0x80) return v >= 'A' && v <= 'Z' ? v + 32 : v;
  if (v == 0x17F) return 's';  // long s and the Kelvin sign fold to ASCII letters
  if (v == 0x212A) return 'k';
  return static_cast<CodePoint>(utf8proc_tolower(static_cast<utf8proc_int32_t>(v)));
}

CodePoint upper(CodePoint v) {
  if (v < 0x80) return v >= 'a' && v <= 'z' ? v - 32 : v;
  return static_cast<CodePoint>(utf8proc_toupper(static_cast<utf8proc_int32_t>(v)));
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) throw Error("bad_text", "", std::string("cannot normalize text: ") + utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

}  // namespace shardfit::tokenizer
