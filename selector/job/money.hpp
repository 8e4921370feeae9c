// Deadlines and sums of money as job files and command lines write them.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "selector/job/job.hpp"

namespace shardfit::job {

// {"amount": 500, "currency": "EUR"} or "500EUR" / "500 EUR". Throws Error for amounts below 0 and for anything but
// three letters.
Money parse_money(const nlohmann::json& value, const std::string& where);
Money parse_money(std::string_view text, const std::string& where);
// "12h" and the other forms of parse_duration, or a number of seconds; above 0.
double parse_deadline(const nlohmann::json& value, const std::string& where);
// Three letters A to Z, upper-cased; throws Error{bad_currency}.
std::string parse_currency(std::string_view text, const std::string& where);

}  // namespace shardfit::job
