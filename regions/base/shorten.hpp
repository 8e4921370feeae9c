#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace shardfit {

// At most `most` bytes of `text`: cut between words, with " ..." where something is left out. Never inside a UTF-8
// character.
std::string shorten(std::string_view text, std::size_t most);

}  // namespace shardfit
