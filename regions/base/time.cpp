#include "regions/base/time.hpp"

#include <cctype>
#include <chrono>
#include <cstdio>

namespace shardfit {
namespace {

std::int64_t days_from_civil(std::int64_t y, unsigned m, unsigned d) {
  using namespace std::chrono;
  return sys_days(year(static_cast<int>(y)) / month(m) / day(d)).time_since_epoch().count();
}

// Reads exactly n digits at *p; -1 when they are not there.
int digits(const char*& p, const char* end, int n) {
  int v = 0;
  for (int i = 0; i < n; ++i, ++p) {
    if (p == end || !std::isdigit(static_cast<unsigned char>(*p))) return -1;
    v = v * 10 + (*p - '0');
  }
  return v;
}

}  // namespace

std::optional<std::int64_t> parse_time(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  const char *p = text.data(), *end = p + text.size();
  const int year = digits(p, end, 4);
  if (year < 1970) return std::nullopt;
  int month = 1, day = 1;
  auto rest_is_remark = [&] { return p == end || *p == ' ' || *p == '('; };
  if (end - p >= 5 && *p == '-') {  // "2025-2026": a span of years means its beginning
    const char* q = p + 1;
    if (digits(q, end, 4) >= year && (q == end || *q == ' ' || *q == '(')) p = q;
  }
  if (!rest_is_remark()) {
    if (*p++ != '-' || (month = digits(p, end, 2)) < 1 || month > 12) return std::nullopt;
    if (!rest_is_remark() && *p == '-') {
      ++p;
      if ((day = digits(p, end, 2)) < 1) return std::nullopt;
      using namespace std::chrono;
      const year_month_day ymd{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                               std::chrono::day(static_cast<unsigned>(day))};
      if (!ymd.ok()) return std::nullopt;
    }
  }
  std::int64_t t = days_from_civil(year, static_cast<unsigned>(month), static_cast<unsigned>(day)) * 86400;
  if (p == end || *p == '(' || (*p == ' ' && (p + 1 == end || !std::isdigit(static_cast<unsigned char>(p[1])))))
    return t;
  if (*p != 'T' && *p != 't' && *p != ' ') return std::nullopt;
  ++p;
  const int hour = digits(p, end, 2);
  if (hour < 0 || hour > 23 || p == end || *p++ != ':') return std::nullopt;
  const int minute = digits(p, end, 2);
  if (minute < 0 || minute > 59) return std::nullopt;
  int second = 0;
  if (p != end && *p == ':') {
    ++p;
    if ((second = digits(p, end, 2)) < 0 || second > 60) return std::nullopt;
  }
  if (p != end && *p == '.')
    for (++p; p != end && std::isdigit(static_cast<unsigned char>(*p));) ++p;
  t += hour * 3600 + minute * 60 + second;
  if (p == end) return t;
  if ((*p == 'Z' || *p == 'z') && p + 1 == end) return t;
  if (*p == '+' || *p == '-') {
    const int sign = *p++ == '+' ? 1 : -1;
    const int oh = digits(p, end, 2);
    if (p != end && *p == ':') ++p;
    const int om = digits(p, end, 2);
    if (oh < 0 || om < 0 || oh > 23 || om > 59 || p != end) return std::nullopt;
    return t - sign * (oh * 3600 + om * 60);
  }
  return std::nullopt;
}

std::string format_date(std::int64_t s) { return format_time(s).substr(0, 10); }

std::string format_time(std::int64_t s) {
  using namespace std::chrono;
  const auto t = sys_seconds(seconds(s));
  const auto d = floor<days>(t);
  const year_month_day ymd(d);
  const hh_mm_ss hms(t - d);
  char buffer[80];
  std::snprintf(buffer, sizeof buffer, "%04d-%02u-%02uT%02d:%02d:%02dZ", static_cast<int>(ymd.year()),
                static_cast<unsigned>(ymd.month()), static_cast<unsigned>(ymd.day()),
                static_cast<int>(hms.hours().count()), static_cast<int>(hms.minutes().count()),
                static_cast<int>(hms.seconds().count()));
  return buffer;
}

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace shardfit
