// Reading of a Hugging Face config.json: the same size goes by several names, absent keys have a meaning, and a wrong value must
// become one error that names its key. Unknown keys are normal in these files and ignored.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "regions/base/error.hpp"
#include "selector/model/model.hpp"

namespace shardfit::model {

// Largest values taken seriously; beyond them a config is a mistake, and below them no product of a parameter's shape overflows.
inline constexpr std::int64_t kMostWidth = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostVocabulary = std::int64_t{1} << 28;
inline constexpr std::int64_t kMostPositions = std::int64_t{1} << 32;
inline constexpr std::int64_t kMostLayers = 1 << 13;
inline constexpr std::int64_t kMostHeads = 1 << 16;
inline constexpr std::int64_t kMostExperts = 1 << 12;
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 52;  // of a whole model; exact in a double too

class Config {
 public:
  using Keys = std::initializer_list<std::string_view>;  // names of one value, first found wins; null counts as absent

  explicit Config(const nlohmann::json& object, std::string where = "") : object_(&object), where_(std::move(where)) {}

  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool has_key(std::string_view key) const;  // present, null included

  // Whole numbers in [least, most]; throw Error{missing_key | wrong_type | out_of_range} with the pointer of the key.
  std::int64_t size(Keys keys, std::int64_t most = kMostWidth) const;
  std::int64_t size_or(Keys keys, std::int64_t fallback, std::int64_t least = 0, std::int64_t most = kMostWidth) const;
  std::optional<std::int64_t> optional_size(Keys keys, std::int64_t least = 1, std::int64_t most = kMostWidth) const;
  double number_or(Keys keys, double fallback, double least, double most) const;
  double probability_or(Keys keys, double fallback = 0) const { return number_or(keys, fallback, 0, 1); }
  bool flag_or(Keys keys, bool fallback) const;
  std::string word_or(Keys keys, std::string fallback) const;
  std::vector<std::string> words(std::string_view key) const;        // empty when absent
  std::vector<std::int64_t> sizes(std::string_view key) const;       // empty when absent
  std::optional<Config> section(std::string_view key) const;         // a nested object
  std::int64_t count(std::string_view key) const;                    // members of an array or object; -1 when absent

  Activation activation(Keys keys, std::string_view fallback) const;  // throws Error{unknown_word} listing the known ones
  Error wrong(std::string_view key, std::string message, std::string remedy = "") const;  // an error at this key
  std::string at(std::string_view key) const { return where_ + "/" + std::string(key); }

 private:
  const nlohmann::json* find(std::string_view key) const;
  const nlohmann::json* find(Keys keys, std::string_view& key) const;
  std::int64_t whole(const nlohmann::json& value, std::string_view key, std::int64_t least, std::int64_t most) const;

  const nlohmann::json* object_;
  std::string where_;
};

Activation activation_of(std::string_view name);  // kNone when unknown

}  // namespace shardfit::model
