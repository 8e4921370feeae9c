#include "plugin/inventory/slurm_inventory.hpp"
#include "regions/base/error.hpp"
#include "regions/base/text.hpp"

namespace shardfit::inventory {
namespace {

constexpr std::size_t kMostNames = 100'000;

[[noreturn]] void bad(std::string_view text, const std::string& why) {
  throw Error("bad_hostlist", "", "node list \"" + std::string(text.substr(0, 60)) + "\": " + why);
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// One comma-separated part, its first bracket expanded; the rest by recursion (racks and nodes: "r[1-2]n[1-4]").
void expand_one(std::string_view whole, const std::string& prefix, std::string_view rest,
                std::vector<std::string>& out) {
  const auto open = rest.find('[');
  if (open == std::string_view::npos) {
    if (rest.find(']') != std::string_view::npos) bad(whole, "a ] without [");
    if (out.size() >= kMostNames) bad(whole, "more than 100000 names");
    out.push_back(prefix + std::string(rest));
    return;
  }
  const auto close = rest.find(']', open);
  if (close == std::string_view::npos) bad(whole, "a [ without ]");
  for (const auto& range : split(rest.substr(open + 1, close - open - 1), ',')) {
    const auto dash = range.find('-');
    const std::string low = range.substr(0, dash), high = dash == std::string::npos ? low : range.substr(dash + 1);
    if (!all_digits(low) || !all_digits(high) || low.size() > 9 || high.size() > 9)
      bad(whole, "\"" + range + "\" is not a range of numbers");
    const long first = std::stol(low), last = std::stol(high);
    if (last < first || static_cast<std::size_t>(last - first) >= kMostNames)
      bad(whole, "\"" + range + "\" is not a usable range");
    for (long i = first; i <= last; ++i) {
      auto number = std::to_string(i);
      if (number.size() < low.size()) number.insert(0, low.size() - number.size(), '0');
      expand_one(whole, prefix + std::string(rest.substr(0, open)) + number, rest.substr(close + 1), out);
    }
  }
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text) {
  std::vector<std::string> out;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    const auto part = trim(text.substr(begin, i - begin));
    begin = i + 1;
    if (!part.empty() && part != "(null)") expand_one(text, "", part, out);
  }
  return out;
}

}  // namespace shardfit::inventory
