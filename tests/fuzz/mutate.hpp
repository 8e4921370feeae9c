// Deterministic spoiling of JSON: the same seed gives the same case on every machine.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardfit::fuzz {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(next() % n); }
  bool chance(unsigned percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

// A value that no file should hold, or an odd one that it may.
inline nlohmann::json strange(Random& r) {
  using nlohmann::json;
  static const std::vector<json> kValues{
      nullptr, true, false, 0, 1, 2, 3, 5, 7, 12, 64, 100, 127, 1000, 4097, 65536, 1 << 20, -1, -4096, 1e9, 2147483647, 2147483648LL, 4294967296LL, 1e12, 1e15, 1e18, 9223372036854775807LL,
      18446744073709551615ULL, 1e19, 1e300, -1e300, 0.5, 0.1, 2.5, 1e-300, "", "none", "auto", "full", "cpu", "nvme", "bf16", "silu", "x", "9999999999", std::string(5000, 'a'), "\xC3\xA9\n\"\\",
      json::array(), json::object(), json::array({1, 2, 3}), json::array({"a", nullptr}), {{"a", 1}}, {{"kind", "full"}, {"every", 0}}, {{"every", -3}}};
  return kValues[r.below(kValues.size())];
}

inline void collect(nlohmann::json& at, std::vector<nlohmann::json*>& nodes, int depth = 0) {
  if (depth > 20) return;
  nodes.push_back(&at);
  if (at.is_structured())
    for (auto& child : at) collect(child, nodes, depth + 1);
}

// Changes one to a few places of `json`: another value, another number near it, a key gone, a key doubled under another name.
inline void mutate(nlohmann::json& json, Random& r, std::size_t most = 4) {
  for (std::size_t n = 1 + r.below(most); n > 0; --n) {
    std::vector<nlohmann::json*> nodes;
    collect(json, nodes);
    nlohmann::json& at = *nodes[r.below(nodes.size())];
    switch (r.below(6)) {
      case 0:
        if (at.is_object() && !at.empty()) {
          auto it = at.begin();
          std::advance(it, static_cast<std::ptrdiff_t>(r.below(at.size())));
          at.erase(it);
        }
        break;
      case 1:
        if (at.is_number()) {
          static constexpr double kTimes[] = {0, -1, 0.5, 2, 3, 10, 1e3, 1e6, 1e9, 1e15};
          const double value = at.get<double>() * kTimes[r.below(std::size(kTimes))];
          if (value == static_cast<double>(static_cast<std::int64_t>(std::max(-9e18, std::min(9e18, value)))) && std::abs(value) < 9e18) at = static_cast<std::int64_t>(value);
          else at = value;
        }
        break;
      case 2:
        if (at.is_number_integer()) at = at.get<std::int64_t>() + static_cast<std::int64_t>(r.below(5)) - 2;
        break;
      case 3:
        if (at.is_object() && !at.empty()) {
          auto it = at.begin();
          std::advance(it, static_cast<std::ptrdiff_t>(r.below(at.size())));
          const std::string key = it.key() + "x";
          at[key] = strange(r);
        }
        break;
      default:
        if (&at != &json || r.chance(2)) at = strange(r);
        break;
    }
  }
}

// Spoils the text itself: bytes cut, doubled or changed.
inline void mutate(std::string& text, Random& r) {
  for (std::size_t n = 1 + r.below(4); n > 0 && !text.empty(); --n) {
    const std::size_t at = r.below(text.size());
    switch (r.below(4)) {
      case 0: text.erase(at, 1 + r.below(20)); break;
      case 1: text.insert(at, text.substr(r.below(text.size()), r.below(40))); break;
      case 2: text[at] = static_cast<char>(r.below(256)); break;
      default: text.resize(at); break;
    }
  }
}

}  // namespace shardfit::fuzz
