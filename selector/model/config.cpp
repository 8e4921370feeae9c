#include "selector/model/config.hpp"

#include <array>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"

namespace shardfit::model {
namespace {

// transformers/activations.py: the "new" and "fast" forms are composed in Python from several element-wise kernels.
constexpr std::array<std::pair<std::string_view, Activation>, 14> kActivations{{
    {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},
    {"gelu_python", Activation::kGelu},
    {"gelu_10", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanhPython},
    {"gelu_fast", Activation::kGeluTanhPython},
    {"gelu_accurate", Activation::kGeluTanhPython},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"quick_gelu", Activation::kGeluTanhPython},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kReluSquared},
    {"tanh", Activation::kTanh},
    {"swiglu", Activation::kSilu},
}};

std::string names(Config::Keys keys) {
  std::string text;
  for (auto key : keys) text += (text.empty() ? "\"" : " or \"") + std::string(key) + "\"";
  return text;
}

}  // namespace

Activation activation_of(std::string_view name) {
  for (const auto& [word, activation] : kActivations)
    if (word == name) return activation;
  return Activation::kNone;
}

Error Config::wrong(std::string_view key, std::string message, std::string remedy) const {
  return Error("out_of_range", at(key), std::move(message), std::move(remedy));
}

bool Config::has_key(std::string_view key) const { return object_->contains(key); }

const Json* Config::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

const Json* Config::find(Keys keys, std::string_view& key) const {
  for (auto k : keys)
    if (const Json* value = find(k)) {
      key = k;
      return value;
    }
  return nullptr;
}

std::int64_t Config::whole(const Json& value, std::string_view key, std::int64_t least, std::int64_t most) const {
  if (!value.is_number()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a whole number, not {}", key, brief(value)));
  const double number = value.get<double>();
  if (!(number >= static_cast<double>(least) && number <= static_cast<double>(most)))
    throw wrong(key, fmt::format("\"{}\" is {}, outside {} to {}", key, brief(value), least, most), "correct the config.json");
  if (number != std::floor(number)) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a whole number, not {}", key, brief(value)));
  return static_cast<std::int64_t>(number);
}

std::int64_t Config::size(Keys keys, std::int64_t most) const {
  std::string_view key;
  const Json* value = find(keys, key);
  if (!value)
    throw Error("missing_key", at(*keys.begin()), fmt::format("{} is missing", names(keys)),
                "take the model's original config.json, or choose another family with --as");
  return whole(*value, key, 1, most);
}

std::optional<std::int64_t> Config::optional_size(Keys keys, std::int64_t least, std::int64_t most) const {
  std::string_view key;
  const Json* value = find(keys, key);
  if (!value) return std::nullopt;
  return whole(*value, key, least, most);
}

std::int64_t Config::size_or(Keys keys, std::int64_t fallback, std::int64_t least, std::int64_t most) const {
  return optional_size(keys, least, most).value_or(fallback);
}

double Config::number_or(Keys keys, double fallback, double least, double most) const {
  std::string_view key;
  const Json* value = find(keys, key);
  if (!value) return fallback;
  if (!value->is_number()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a number, not {}", key, brief(*value)));
  const double number = value->get<double>();
  if (!(number >= least && number <= most))
    throw wrong(key, fmt::format("\"{}\" is {}, outside {} to {}", key, brief(*value), least, most), "correct the config.json");
  return number;
}

bool Config::flag_or(Keys keys, bool fallback) const {
  std::string_view key;
  const Json* value = find(keys, key);
  if (!value) return fallback;
  if (!value->is_boolean()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be true or false, not {}", key, brief(*value)));
  return value->get<bool>();
}

std::string Config::word_or(Keys keys, std::string fallback) const {
  std::string_view key;
  const Json* value = find(keys, key);
  if (!value) return fallback;
  if (!value->is_string()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a string, not {}", key, brief(*value)));
  return value->get<std::string>();
}

std::vector<std::string> Config::words(std::string_view key) const {
  std::vector<std::string> list;
  const Json* value = find(key);
  if (!value) return list;
  if (!value->is_array()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a list of strings, not {}", key, brief(*value)));
  list.reserve(value->size());
  for (const Json& item : *value) {
    if (!item.is_string()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must hold strings, not {}", key, brief(item)));
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::vector<std::int64_t> Config::sizes(std::string_view key) const {
  std::vector<std::int64_t> list;
  const Json* value = find(key);
  if (!value) return list;
  if (!value->is_array()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a list of whole numbers, not {}", key, brief(*value)));
  for (const Json& item : *value) list.push_back(whole(item, key, 0, kMostWidth));
  return list;
}

std::optional<Config> Config::section(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be an object, not {}", key, brief(*value)));
  return Config(*value, at(key));
}

std::int64_t Config::count(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return -1;
  if (!value->is_array() && !value->is_object())
    throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a list or an object, not {}", key, brief(*value)));
  return static_cast<std::int64_t>(value->size());
}

Activation Config::activation(Keys keys, std::string_view fallback) const {
  std::string_view key = *keys.begin();
  std::string name(fallback);
  if (const Json* value = find(keys, key)) {
    if (!value->is_string()) throw Error("wrong_type", at(key), fmt::format("\"{}\" must be a string, not {}", key, brief(*value)));
    name = value->get<std::string>();
  }
  const Activation activation = activation_of(name);
  if (activation != Activation::kNone) return activation;
  std::vector<std::string> known;
  for (const auto& [word, unused] : kActivations) known.emplace_back(word);
  throw Error("unknown_word", at(key), fmt::format("unknown activation \"{}\"", name), "known ones: " + join(known, ", "));
}

}  // namespace shardfit::model
