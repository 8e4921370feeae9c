#include "pricing/rates.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "embedded/ecb_rates_xml.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

// The value of attribute `name` inside one tag, or "".
std::string attribute(std::string_view tag, std::string_view name) {
  for (size_t at = 0; (at = tag.find(name, at)) != std::string_view::npos; at += name.size()) {
    if (at == 0 || !std::isspace(static_cast<unsigned char>(tag[at - 1]))) continue;
    size_t p = at + name.size();
    while (p < tag.size() && std::isspace(static_cast<unsigned char>(tag[p]))) ++p;
    if (p >= tag.size() || tag[p] != '=') continue;
    ++p;
    while (p < tag.size() && std::isspace(static_cast<unsigned char>(tag[p]))) ++p;
    if (p >= tag.size() || (tag[p] != '"' && tag[p] != '\'')) return "";
    const size_t end = tag.find(tag[p], p + 1);
    return end == std::string_view::npos ? "" : std::string(tag.substr(p + 1, end - p - 1));
  }
  return "";
}

}  // namespace

Rates Rates::parse(std::string_view xml, const std::string& file) {
  const auto bad = [&](size_t at, const std::string& why) {
    const auto line =
        1 + std::count(xml.begin(), xml.begin() + static_cast<std::ptrdiff_t>(std::min(at, xml.size())), '\n');
    Error e("bad_rates", "line " + std::to_string(line), why, "use the ECB's eurofxref-daily.xml");
    e.in_file(file);
    return e;
  };
  Rates rates;
  std::string day;  // of the Cube we are in; the 90-day and the full history have one a day
  for (size_t at = 0; (at = xml.find('<', at)) != std::string_view::npos;) {
    if (xml.compare(at, 4, "<!--") == 0) {
      const size_t end = xml.find("-->", at);
      if (end == std::string_view::npos) break;
      at = end + 3;
      continue;
    }
    const size_t end = xml.find('>', at);
    if (end == std::string_view::npos) throw bad(at, "the file ends inside a tag");
    const std::string_view tag = xml.substr(at, end - at);
    if (tag.compare(0, 5, "<Cube") == 0) {
      if (const std::string time = attribute(tag, "time"); !time.empty()) {
        if (!parse_time(time)) throw bad(at, "date \"" + time + "\" cannot be read");
        day = time;
        if (day > rates.date_) {  // the newest day wins
          rates.date_ = day;
          rates.per_euro_ = {{"EUR", 1.0}};
        }
      }
      const std::string currency = attribute(tag, "currency"), text = attribute(tag, "rate");
      if (!currency.empty() || !text.empty()) {
        char* stop = nullptr;
        const double rate = std::strtod(text.c_str(), &stop);
        if (currency.size() != 3) throw bad(at, "currency \"" + currency + "\" is not a code of three letters");
        if (text.empty() || *stop != '\0' || !std::isfinite(rate) || rate <= 0)
          throw bad(at, "rate \"" + text + "\" of " + currency + " is not a number above 0");
        if (day == rates.date_) rates.per_euro_[currency] = rate;
      }
    }
    at = end + 1;
  }
  if (rates.date_.empty() || rates.per_euro_.size() < 2) throw bad(0, "no dated exchange rates were found");
  return rates;
}

Rates Rates::shipped() { return parse(embedded::ecb_rates_xml(), "shipped rates"); }

Rates Rates::read(const std::string& file) { return parse(read_file(file, std::size_t{64} << 20), file); }

Rates Rates::load(const std::string& state_dir) {
  const auto path = std::filesystem::path(state_dir) / "ecb_rates.xml";
  std::error_code ec;
  return !state_dir.empty() && std::filesystem::exists(path, ec) ? read(path.string()) : shipped();
}

std::optional<double> Rates::rate(std::string_view from, std::string_view to) const {
  if (from == to) return 1.0;
  const auto a = per_euro_.find(from), b = per_euro_.find(to);
  if (a == per_euro_.end() || b == per_euro_.end()) return std::nullopt;
  return b->second / a->second;
}

Money Rates::convert(const Money& money, std::string_view to) const {
  const auto r = rate(money.currency(), to);
  if (!r) {
    const std::string missing = per_euro_.count(money.currency()) ? std::string(to) : money.currency();
    throw Error("currency_rate_missing", "", "no exchange rate for " + missing + " in the rates of " + date_,
                "import newer rates: shardfit prices import eurofxref-daily.xml");
  }
  return Money(money.amount() * *r, to);
}

std::int64_t Rates::age_seconds(std::int64_t now) const {
  const auto day = parse_time(date_);
  return day && now > *day ? now - *day : 0;
}

}  // namespace shardfit::pricing
