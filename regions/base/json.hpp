// Strict reading of JSON objects that people write: every key is asked for by name, an unknown one is an error that
// names the nearest known one, and every error carries the JSON pointer of the value.
#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit {

struct Error;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Parses text with // and /* */ comments; throws Error{bad_json} with line and column. `file` is named in errors.
Json parse_json(std::string_view text, const std::string& file = "");
Json read_json_file(const std::filesystem::path& path);

// Where = JSON pointer of `object`. Throws Error{wrong_type} if it is not an object.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  std::string at(std::string_view key) const { return where_ + "/" + std::string(key); }

  // The value, or nullptr when absent or null. Marks the key as known.
  const Json* get(std::string_view key);
  bool has(std::string_view key) { return get(key) != nullptr; }
  bool is_null(std::string_view key) const;  // present and null

  std::optional<std::string> string(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  std::optional<double> number(std::string_view key, double least = -std::numeric_limits<double>::infinity(),
                               double most = std::numeric_limits<double>::infinity());
  // Accepts 2e9 and 2000000000.0 as whole numbers; else Error{wrong_type}; outside [least, most] Error{out_of_range}.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least = 0,
                                      std::int64_t most = std::int64_t{1} << 62);
  std::optional<std::string> one_of(std::string_view key,
                                    const std::vector<std::string>& words);  // Error{unknown_word}
  std::optional<std::vector<std::string>> strings(std::string_view key);     // a list of strings, or one string

  // Same, but Error{missing_key} when absent.
  std::string required_string(std::string_view key);
  double required_number(std::string_view key, double least = -std::numeric_limits<double>::infinity(),
                         double most = std::numeric_limits<double>::infinity());
  std::int64_t required_integer(std::string_view key, std::int64_t least = 0,
                                std::int64_t most = std::int64_t{1} << 62);
  const Json& required(std::string_view key);

  void ignore(std::string_view key) { known_.emplace_back(key); }
  // Throws Error{unknown_key} for a key that nobody asked for. Call once all keys were asked for.
  void finish() const;
  std::vector<std::string> unknown() const;

 private:
  Error wrong_type(std::string_view key, const Json& value, const char* wanted) const;
  const Json& object_;
  std::string where_;
  std::vector<std::string> known_;
};

// A value as it stands in an error message: compact JSON, cut at 60 characters.
std::string brief(const Json& value);

}  // namespace shardfit
