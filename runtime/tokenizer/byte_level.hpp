// GPT-2's spelling of bytes: each byte is one printable character, so that a vocabulary of text can hold any bytes.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace shardfit::tokenizer {

// The bytes that `token` spells; nullopt if it holds a character outside the alphabet (an added token, say). `token` is
// valid UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);

}  // namespace shardfit::tokenizer
