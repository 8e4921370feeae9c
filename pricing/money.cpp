#include "pricing/money.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"

namespace shardfit::pricing {
namespace {

// ISO 4217, currencies in use as money (funds, metals and test codes left out).
constexpr std::string_view kCurrencies =
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CLP CNY COP CRC CUP "
    "CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY "
    "KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK "
    "NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT "
    "TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG ";

constexpr double kMost = 9.2e9;

[[noreturn]] void too_large() {
  throw Error("out_of_range", "", "an amount of money above 9.2e9 units", "check the price and the number of hours");
}

}  // namespace

bool is_currency_code(std::string_view code) {
  if (code.size() != 3) return false;
  for (size_t i = 0; i + 3 < kCurrencies.size() + 1; i += 4)
    if (kCurrencies.substr(i, 3) == code) return true;
  return false;
}

Money::Money(double amount, std::string_view currency) : currency_(currency) {
  if (!is_currency_code(currency))
    throw Error("bad_currency", "", "\"" + std::string(currency) + "\" is not a currency code",
                "write three capital letters as EUR, USD, CHF (ISO 4217)");
  if (!(std::fabs(amount) <= kMost)) too_large();
  nanos_ = std::llround(amount * 1e9);
}

Money Money::from_nanos(std::int64_t nanos, std::string_view currency) {
  Money m(0, currency);
  m.nanos_ = nanos;
  return m;
}

Money Money::parse(std::string_view text, const std::string& where) {
  std::string number, code;
  bool point = false, bad = false;
  const std::string t = trim(text);
  for (size_t i = 0; i < t.size(); ++i) {
    const char c = t[i];
    if (std::isdigit(static_cast<unsigned char>(c))) {
      bad |= !number.empty() && i > 0 && !std::isdigit(static_cast<unsigned char>(t[i - 1])) && t[i - 1] != '.';
      number += c;
    } else if (c == '.' && !point && !number.empty()) {
      point = true;
      number += c;
    } else if (std::isalpha(static_cast<unsigned char>(c))) {
      code += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    } else if (c != ' ') {
      bad = true;
    }
  }
  if (bad || number.empty() || code.size() != 3)
    throw Error("bad_money", where, "\"" + t + "\" is not an amount of money", "write it as 500EUR or 12.50 USD");
  if (!is_currency_code(code))
    throw Error("bad_currency", where, "\"" + code + "\" is not a currency code", "write it as 500EUR (ISO 4217)");
  try {
    return Money(std::strtod(number.c_str(), nullptr), code);
  } catch (Error& e) {
    throw Error(e.code, where, "\"" + t + "\" is above 9.2e9 units", e.remedy);
  }
}

std::string Money::to_string(int decimals) const {
  decimals = std::clamp(decimals, 0, 9);
  // Rounded half away from zero on the exact decimal, not on its binary neighbour.
  std::int64_t unit = 1;
  for (int i = decimals; i < 9; ++i) unit *= 10;
  const bool negative = nanos_ < 0;
  const std::uint64_t magnitude =
      negative ? 0 - static_cast<std::uint64_t>(nanos_) : static_cast<std::uint64_t>(nanos_);
  const std::uint64_t rounded = (magnitude + static_cast<std::uint64_t>(unit) / 2) / static_cast<std::uint64_t>(unit);
  std::uint64_t scale = 1;
  for (int i = 0; i < decimals; ++i) scale *= 10;
  std::string text = negative ? "-" : "";
  text +=
      decimals > 0 ? fmt::format("{}.{:0{}}", rounded / scale, rounded % scale, decimals) : fmt::format("{}", rounded);
  return text + (currency_.empty() ? "" : " " + currency_);
}

Money& Money::operator+=(const Money& other) {
  if (other.currency_.empty()) return *this;
  if (currency_.empty()) return *this = other;
  if (currency_ != other.currency_)
    throw Error("currency_mismatch", "", "adding " + other.currency_ + " to " + currency_, "convert one of them first",
                kExitFailed);
  if (__builtin_add_overflow(nanos_, other.nanos_, &nanos_)) too_large();
  return *this;
}

Money Money::operator*(double factor) const {
  const double n = static_cast<double>(nanos_) * factor;
  if (!(std::fabs(n) <= kMost * 1e9)) too_large();
  Money m = *this;
  m.nanos_ = std::llround(n);
  return m;
}

}  // namespace shardfit::pricing
