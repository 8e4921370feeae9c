#include "selector/job/money.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"

namespace shardfit::job {

std::string parse_currency(std::string_view text, const std::string& where) {
  std::string code = trim(text);
  for (char& c : code)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  if (code.size() != 3 || !std::all_of(code.begin(), code.end(), [](char c) { return c >= 'A' && c <= 'Z'; }))
    throw Error("bad_currency", where, "\"" + std::string(text.substr(0, 60)) + "\" is not a currency",
                "write its ISO 4217 code, e.g. EUR");
  return code;
}

Money parse_money(std::string_view text, const std::string& where) {
  const std::string t = trim(text);
  Money m;
  const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), m.amount);
  if (error != std::errc() || !std::isfinite(m.amount))
    throw Error("bad_money", where, "\"" + t.substr(0, 60) + "\" cannot be read as a sum of money",
                "write it as 500EUR");
  if (m.amount < 0)
    throw Error("out_of_range", where, "\"" + t.substr(0, 60) + "\" is below 0", "it must be at least 0");
  m.currency = parse_currency(std::string_view(end, static_cast<size_t>(t.data() + t.size() - end)), where);
  return m;
}

Money parse_money(const nlohmann::json& value, const std::string& where) {
  if (value.is_string()) return parse_money(std::string_view(value.get_ref<const std::string&>()), where);
  ObjectReader r(value, where);
  Money m;
  m.amount = r.required_number("amount", 0, 1e15);
  m.currency = parse_currency(r.required_string("currency"), r.at("currency"));
  r.finish();
  return m;
}

double parse_deadline(const nlohmann::json& value, const std::string& where) {
  double seconds = 0;
  if (value.is_number()) seconds = value.get<double>();
  else if (value.is_string()) seconds = parse_duration(value.get_ref<const std::string&>(), where);
  else throw Error("wrong_type", where, "a duration such as \"12h\" is needed, not " + brief(value));
  if (!(seconds > 0) || !std::isfinite(seconds))
    throw Error("out_of_range", where, brief(value) + " is no time to run in", "it must be above 0, e.g. \"12h\"");
  return seconds;
}

}  // namespace shardfit::job
