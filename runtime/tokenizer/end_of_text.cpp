#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace shardfit::tokenizer {
namespace {

// A special token is written as its text or as an object with `content`.
std::optional<std::string> spelling(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && found->at("content").is_string())
    return found->at("content").get<std::string>();
  return std::nullopt;
}

std::optional<TokenId> number(const Json& json, const char* key) {
  auto found = json.find(key);
  if (found == json.end()) return std::nullopt;
  const Json& value = found->is_array() && !found->empty() ? found->front() : *found;
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > (1 << 24))
    return std::nullopt;
  return value.get<TokenId>();
}

}  // namespace

std::optional<TokenId> end_of_text(const std::filesystem::path& model_folder, const Tokenizer* tokenizer) {
  const auto read = [&](const char* name) {
    const auto file = model_folder / name;
    const Json json = std::filesystem::exists(file) ? read_json_file(file) : Json::object();
    return json.is_object() ? json : Json::object();
  };
  if (tokenizer != nullptr)
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
      if (const auto token = spelling(read(name), "eos_token"))
        if (const auto id = tokenizer->id_of(*token)) return id;
  for (const char* name : {"config.json", "generation_config.json"})
    if (const auto id = number(read(name), "eos_token_id")) return id;
  return std::nullopt;
}

}  // namespace shardfit::tokenizer
