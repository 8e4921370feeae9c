// Money: an exact decimal amount (9 decimal places) with its currency. Two currencies never mix: convert through Rates
// first.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shardfit::pricing {

constexpr double kMonthSeconds = 365.25 / 12 * 86400.0;  // of prices per month: a twelfth of a year

class Money {
 public:
  Money() = default;
  // Rounded to the nearest 1e-9 unit. Throws Error{out_of_range} above 9.2e9 units, Error{bad_currency} for a code not
  // of ISO 4217's form.
  Money(double amount, std::string_view currency);
  static Money from_nanos(std::int64_t nanos, std::string_view currency);
  // "500EUR", "500 EUR", "EUR 500", "1'000.50 CHF" is refused: digits, one point, one code. Throws Error{bad_money}.
  static Money parse(std::string_view text, const std::string& where);

  double amount() const { return static_cast<double>(nanos_) / 1e9; }
  std::int64_t nanos() const { return nanos_; }
  const std::string& currency() const { return currency_; }
  std::string to_string(int decimals = 2) const;  // "18.32 EUR"

  Money& operator+=(const Money& other);  // Error{currency_mismatch}; a default-made Money takes on any currency
  Money operator*(double factor) const;
  friend Money operator+(Money a, const Money& b) { return a += b; }
  friend bool operator==(const Money& a, const Money& b) = default;

 private:
  std::int64_t nanos_ = 0;
  std::string currency_;
};

bool is_currency_code(std::string_view code);  // three capital letters that ISO 4217 lists as money in use

}  // namespace shardfit::pricing
