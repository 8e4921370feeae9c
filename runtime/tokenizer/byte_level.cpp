#include "runtime/tokenizer/byte_level.hpp"

#include <array>

#include "runtime/tokenizer/unicode.hpp"

namespace shardfit::tokenizer {
namespace {

struct Alphabet {
  std::array<CodePoint, 256> character;
  std::array<int, 512> byte;
  // encoder.py of GPT-2: printable Latin-1 bytes stand for themselves, the others for 256 and on, in order.
  Alphabet() {
    byte.fill(-1);
    CodePoint next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[static_cast<std::size_t>(b)] = printable ? static_cast<CodePoint>(b) : next++;
      byte[character[static_cast<std::size_t>(b)]] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const Decoded d = decode_at(token, at);
    if (d.value >= alphabet().byte.size() || alphabet().byte[d.value] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[d.value]);
    at += d.length;
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char b : bytes) append_utf8(token, alphabet().character[static_cast<unsigned char>(b)]);
  return token;
}

}  // namespace shardfit::tokenizer
