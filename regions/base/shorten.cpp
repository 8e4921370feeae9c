#include "regions/base/shorten.hpp"

namespace shardfit {

std::string shorten(std::string_view text, std::size_t most) {
  constexpr std::string_view kLeftOut = " ...", kSpaces = " \t\n\r";
  if (text.size() <= most) return std::string(text);
  if (most <= kLeftOut.size()) return std::string(kLeftOut.substr(0, most));
  std::size_t end = most - kLeftOut.size();
  if (const auto space = text.substr(0, end + 1).find_last_of(kSpaces); space != text.npos && space > 0) end = space;
  else  // one long word
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  const auto last = text.substr(0, end).find_last_not_of(kSpaces);
  return std::string(text.substr(0, last == text.npos ? 0 : last + 1)) + std::string(kLeftOut);
}

}  // namespace shardfit
