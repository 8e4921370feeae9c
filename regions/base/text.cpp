#include "regions/base/text.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "regions/base/error.hpp"

namespace shardfit {

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

int edit_distance(std::string_view a, std::string_view b) {
  const std::string x = to_lower(a), y = to_lower(b);
  const size_t n = x.size(), m = y.size();
  std::vector<std::vector<int>> d(n + 1, std::vector<int>(m + 1));
  for (size_t i = 0; i <= n; ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= m; ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= n; ++i)
    for (size_t j = 1; j <= m; ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (x[i - 1] != y[j - 1])});
      if (i > 1 && j > 1 && x[i - 1] == y[j - 2] && x[i - 2] == y[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[n][m];
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  int best = 1 + static_cast<int>(std::max<size_t>(word.size(), 3)) / 3 + 1;
  std::optional<std::string> out;
  if (word.size() > 256) return out;
  for (const auto& k : known)
    if (int d = edit_distance(word, k); d < best) best = d, out = k;
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  size_t at = 0;
  for (;;) {
    const size_t next = text.find(separator, at);
    out.emplace_back(text.substr(at, next == std::string_view::npos ? next : next - at));
    if (next == std::string_view::npos) return out;
    at = next + 1;
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const auto& p : parts) {
    if (!out.empty() || &p != &parts.front()) out += separator;
    out += p;
  }
  return out;
}

std::string trim(std::string_view text) {
  size_t b = 0, e = text.size();
  while (b < e && std::isspace(static_cast<unsigned char>(text[b]))) ++b;
  while (e > b && std::isspace(static_cast<unsigned char>(text[e - 1]))) --e;
  return std::string(text.substr(b, e - b));
}

namespace {
std::string printed(const char* format, double value, const char* unit) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value, unit);
  return buffer;
}
}  // namespace

std::string format_gib(double bytes) { return printed("%.2f %s", bytes / 1073741824.0, "GiB"); }

std::string format_bytes(double bytes) {
  const double a = std::fabs(bytes);
  if (a < 1024) return printed("%.0f %s", bytes, "B");
  if (a < 1048576) return printed("%.1f %s", bytes / 1024, "KiB");
  if (a < 1073741824) return printed("%.1f %s", bytes / 1048576, "MiB");
  if (a < 1099511627776.0) return format_gib(bytes);
  return printed("%.2f %s", bytes / 1099511627776.0, "TiB");
}

std::string format_duration(double s) {
  char buffer[64];
  if (!std::isfinite(s)) return "unknown";
  if (s < 0.1) return printed("%.1f %s", s * 1000, "ms");
  if (s < 99.95) return printed("%.1f %s", s, "s");
  const long long t = std::llround(s);
  if (t < 3600) std::snprintf(buffer, sizeof buffer, "%lld min %02lld s", t / 60, t % 60);
  else if (t < 2 * 86400) std::snprintf(buffer, sizeof buffer, "%lld h %02lld min", t / 3600, t % 3600 / 60);
  else std::snprintf(buffer, sizeof buffer, "%lld d %lld h", t / 86400, t % 86400 / 3600);
  return buffer;
}

std::string format_count(double n) {
  const double a = std::fabs(n);
  if (a < 1e4) return printed("%.0f%s", n, "");
  if (a < 1e6) return printed("%.1f %s", n / 1e3, "k");
  if (a < 1e9) return printed("%.1f %s", n / 1e6, "M");
  if (a < 1e12) return printed("%.2f %s", n / 1e9, "B");
  return printed("%.2f %s", n / 1e12, "T");
}

double parse_duration(std::string_view text, std::string_view where) {
  const std::string t = trim(text);
  auto bad = [&]() -> Error {
    return {"bad_duration", std::string(where), "duration \"" + t + "\" cannot be read",
            "write it as 90s, 15m, 12h, 2d, 1h30m or D-HH:MM:SS"};
  };
  if (t.empty() || t.size() > 64) throw bad();
  if (t.find(':') != std::string::npos) {
    double days = 0;
    std::string clock = t;
    if (const size_t dash = t.find('-'); dash != std::string::npos) {
      char* end = nullptr;
      const std::string before = t.substr(0, dash);
      days = std::strtod(before.c_str(), &end);
      if (*end != '\0' || dash == 0) throw bad();
      clock = t.substr(dash + 1);
    }
    const auto parts = split(clock, ':');
    if (parts.size() < 2 || parts.size() > 3) throw bad();
    double seconds = 0;
    for (const auto& p : parts) {
      if (p.empty() || !std::all_of(p.begin(), p.end(), [](unsigned char c) { return std::isdigit(c); })) throw bad();
      seconds = seconds * 60 + std::stod(p);
    }
    if (parts.size() == 2 && t.find('-') == std::string::npos) return seconds;  // MM:SS
    if (parts.size() == 2) seconds *= 60;                                       // D-HH:MM
    return days * 86400 + seconds;
  }
  double total = 0;
  const char* p = t.c_str();
  bool any = false;
  while (*p) {
    char* end = nullptr;
    if (!std::isdigit(static_cast<unsigned char>(*p)) && *p != '.') throw bad();
    const double v = std::strtod(p, &end);
    if (end == p || !std::isfinite(v)) throw bad();
    p = end;
    while (*p == ' ') ++p;
    double unit = 1;
    // clang-format off
    switch (std::tolower(static_cast<unsigned char>(*p))) {
      case 's': unit = 1; ++p; break;
      case 'm': unit = 60; ++p; if (std::tolower(static_cast<unsigned char>(*p)) == 'i') { ++p; if (*p == 'n') ++p; } break;
      case 'h': unit = 3600; ++p; break;
      case 'd': unit = 86400; ++p; break;
      case 'w': unit = 604800; ++p; break;
      case '\0': break;
      default: throw bad();
    }
    // clang-format on
    while (*p == ' ') ++p;
    total += v * unit;
    any = true;
  }
  if (!any || !std::isfinite(total)) throw bad();
  return total;
}

}  // namespace shardfit
