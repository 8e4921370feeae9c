// From a file to a Model: reading, choosing the family, the members that every model has.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/model/families.hpp"

namespace shardfit::model {
namespace {

constexpr std::size_t kMostBytes = std::size_t{16} << 20;

// Python writes Infinity and NaN, which JSON does not have; no size is ever one of them. Replaced outside strings.
std::string without_infinities(std::string text) {
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') ++i;
    else if (text[i] == '"') in_string = !in_string;
    else if (!in_string)
      for (std::string_view word : {std::string_view("-Infinity"), std::string_view("Infinity"), std::string_view("NaN")})
        if (text.compare(i, word.size(), word) == 0) {
          text.replace(i, word.size(), "null" + std::string(word.size() > 4 ? word.size() - 4 : 0, ' '));
          break;
        }
  }
  return text;
}

Json parse_config(const std::string& text, const std::string& file) {
  const bool python = text.find("Infinity") != std::string::npos || text.find("NaN") != std::string::npos;
  Json json = parse_json(python ? without_infinities(text) : text, file);
  if (!json.is_object()) throw Error("wrong_type", "", "a model's config must be a JSON object, not " + brief(json));
  // Multi-modal files keep the language model in a section of its own; its keys win, but for the type.
  for (const char* section : {"text_config", "language_config", "llm_config"})
    if (const auto it = json.find(section); it != json.end() && it->is_object() && !json.contains("hidden_size")) {
      const Json inner = *it;
      const Json type = json.value("model_type", Json()), architectures = json.value("architectures", Json());
      json.update(inner);
      if (!type.is_null()) json["model_type"] = type;
      if (!architectures.is_null()) json["architectures"] = architectures;
      json["shardfit_nested"] = section;
      break;
    }
  return json;
}

const Family* by_name(std::string_view name) {
  for (const Family& f : families())
    if (f.name == name) return &f;
  for (const Family& f : families())
    if (std::find(f.model_types.begin(), f.model_types.end(), name) != f.model_types.end()) return &f;
  return nullptr;
}

const Family* by_architecture(std::string_view architecture) {
  const Family* best = nullptr;
  std::size_t length = 0;
  for (const Family& f : families())
    for (std::string_view start : f.architectures)
      if (architecture.starts_with(start) && start.size() > length) {
        best = &f;
        length = start.size();
      }
  return best;
}

Error unknown_family(std::string_view key, std::string message) {
  return Error("unknown_model_type", "/" + std::string(key), std::move(message),
               "known families: " + join(known_families(), ", ") + "; if it is built like one of them, choose it with --as FAMILY");
}

const Family& choose(const Config& c, const std::string& as_family, const std::string& architecture) {
  if (!as_family.empty()) {
    if (const Family* f = by_name(as_family)) return *f;
    const auto near = nearest(as_family, known_families());
    throw unknown_family("model_type", fmt::format("no model family \"{}\"{}", as_family, near ? fmt::format(" (did you mean \"{}\"?)", *near) : ""));
  }
  const std::string type = c.word_or({"model_type"}, "");
  if (type == "gpt_neo" && c.flag_or({"rotary"}, false)) return *by_name("gptj");  // GPT-J's first files
  if (!type.empty())
    if (const Family* f = by_name(type)) return *f;
  if (!architecture.empty())
    if (const Family* f = by_architecture(architecture)) return *f;
  if (!type.empty()) throw unknown_family("model_type", fmt::format("unknown model_type \"{}\"", type));
  if (!architecture.empty()) throw unknown_family("architectures", fmt::format("unknown architecture \"{}\" and no model_type", architecture));
  // Neither is named: keys that only one family has.
  if (c.has("type_vocab_size")) return *by_name(c.size_or({"type_vocab_size"}, 2) == 1 ? "roberta" : "bert");
  if (c.has("n_embd") && c.has("n_positions")) return *by_name("gpt2");
  if (c.has("relative_attention_num_buckets")) return *by_name("t5");
  if (c.has("kv_lora_rank") && c.has("n_routed_experts")) return *by_name("deepseek");
  if (c.has("rms_norm_eps") && c.has("intermediate_size") && !c.has("num_experts") && !c.has("num_local_experts")) return *by_name("llama");
  throw unknown_family("model_type", "the file names neither model_type nor architectures");
}

void check(const Model& m) {
  const auto too_large = [] {
    return Error("out_of_range", "", fmt::format("the model would have more than {} parameters", kMostParameters), "correct the sizes in config.json");
  };
  std::int64_t total = 0;
  const auto add = [&](const Block& b, std::int64_t count) {
    std::int64_t block = 0, all = 0;
    for (const Parameter& p : b.parameters)
      if (__builtin_add_overflow(block, p.elements(), &block)) throw too_large();
    if (__builtin_mul_overflow(block, count, &all) || __builtin_add_overflow(total, all, &total) || total > kMostParameters) throw too_large();
  };
  add(m.embedding, 1);
  add(m.head, 1);
  for (const auto* stack : {&m.encoder, &m.body})
    for (const Run& run : *stack) add(m.blocks[static_cast<std::size_t>(run.block)], run.count);
}

}  // namespace

std::vector<std::string> known_families() {
  std::vector<std::string> names;
  for (const Family& f : families()) names.emplace_back(f.name);
  return names;
}

Model parse_model(const std::string& text, const std::string& file, const std::string& as_family) {
  try {
    const Json json = parse_config(text, file);
    const Config c(json);
    const auto architectures = c.words("architectures");
    const std::string architecture = architectures.empty() ? "" : architectures.front();
    const Family& family = choose(c, as_family, architecture);
    Model m = family.build(c);
    m.family = family.name;
    m.model_type = c.word_or({"model_type"}, "");
    if (m.architecture.empty()) m.architecture = architecture;
    m.dtype = c.word_or({"dtype", "torch_dtype"}, "");
    if (m.dtype.starts_with("torch.")) m.dtype.erase(0, 6);
    for (const char* tower : {"vision_config", "audio_config"})
      if (c.has(tower)) m.notes.push_back(fmt::format("{} is not counted: only the language model is", tower));
    check(m);
    return m;
  } catch (Error& e) {
    e.in_file(file);
    throw;
  }
}

Model load_model(const std::string& path, const std::string& as_family) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? fs::path(path) / "config.json" : fs::path(path);
  return parse_model(read_file(file, kMostBytes), file.string(), as_family);
}

}  // namespace shardfit::model
