// Numbers as decisions print them.
#pragma once
#include <string>

namespace shardfit::decide {

std::string money_words(double amount, const std::string& currency);  // "12.35 EUR", "0.0042 EUR", "12,345 EUR"
std::string percent_words(double ratio);                              // 0.083 -> "8 %"; 0.004 -> "0.4 %"

}  // namespace shardfit::decide
