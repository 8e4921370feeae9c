// Exchange rates as the European Central Bank publishes them (eurofxref XML): units of a currency for one EUR.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "pricing/money.hpp"

namespace shardfit::pricing {

class Rates {
 public:
  static Rates shipped();                           // the file the product carries
  static Rates load(const std::string& state_dir);  // state_dir/ecb_rates.xml if there is one, else the shipped file
  static Rates read(const std::string& file);
  static Rates parse(std::string_view xml, const std::string& file);  // Error{bad_rates}

  // 1 `from` in `to`, through EUR; nullopt where the file misses one.
  std::optional<double> rate(std::string_view from, std::string_view to) const;
  // Throws Error{currency_rate_missing} naming the currency.
  Money convert(const Money& money, std::string_view to) const;
  const std::string& date() const { return date_; }  // "2024-12-31"
  std::int64_t age_seconds(std::int64_t now) const;  // since that day; 0 if it lies ahead
  const std::map<std::string, double, std::less<>>& per_euro() const { return per_euro_; }

 private:
  std::map<std::string, double, std::less<>> per_euro_{{"EUR", 1.0}};
  std::string date_;
};

}  // namespace shardfit::pricing
