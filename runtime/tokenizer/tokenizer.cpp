#include "runtime/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "runtime/tokenizer/added_tokens.hpp"
#include "runtime/tokenizer/bpe.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/pretokenizer.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace shardfit::tokenizer {
namespace {

constexpr const char* kRemedy = "tokenize the data beforehand and give it as format \"tokens\" or as \"input_ids\"";
constexpr std::int64_t kMostTokens = 1 << 24;  // ids above are a broken file

[[noreturn]] void unsupported(const std::string& where, const std::string& what) {
  throw Error("tokenizer_unsupported", where,
              what + " is not supported: only byte-level BPE tokenizers are (GPT-2, SmolLM2, Llama 3, Qwen)", kRemedy);
}

TokenId checked_id(const Json& value, const std::string& where) {
  const bool fits =
      value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() < static_cast<double>(kMostTokens);
  if (!fits)
    throw Error("out_of_range", where,
                "token id " + brief(value) + " is not a whole number below " + std::to_string(kMostTokens));
  return value.get<TokenId>();
}

void check_depth(int depth) {
  if (depth > 16) unsupported("", "a sequence nested more than 16 deep");
}

std::vector<NormalForm> normalizer_of(const Json& json, int depth = 0) {
  check_depth(depth);
  std::vector<NormalForm> forms;
  if (json.is_null()) return forms;
  const std::string type = json.value("type", "");
  if (type == "Sequence") {
    for (const auto& part : json.at("normalizers"))
      for (const NormalForm form : normalizer_of(part, depth + 1)) forms.push_back(form);
  } else if (type == "NFC") {
    forms.push_back(NormalForm::kNfc);
  } else if (type == "NFD") {
    forms.push_back(NormalForm::kNfd);
  } else if (type == "NFKC") {
    forms.push_back(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    forms.push_back(NormalForm::kNfkd);
  } else {
    unsupported("/normalizer", "the normalizer " + type);
  }
  return forms;
}

// What stands before and after a single text.
struct Template {
  std::vector<TokenId> before, after;
};

void read_post_processor(const Json& json, Template& result, int depth = 0) {
  check_depth(depth);
  if (json.is_null()) return;
  const std::string type = json.value("type", "");
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const auto& part : json.at("processors")) read_post_processor(part, result, depth + 1);
    return;
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    result.before.insert(result.before.begin(), checked_id(json.at("cls").at(1), "/post_processor/cls"));
    result.after.push_back(checked_id(json.at("sep").at(1), "/post_processor/sep"));
    return;
  }
  if (type != "TemplateProcessing") unsupported("/post_processor", "the post-processor " + type);
  std::vector<TokenId> before, after;
  bool seen = false;
  for (const auto& part : json.at("single")) {
    if (part.contains("Sequence")) {
      seen = true;
      continue;
    }
    const std::string name = part.at("SpecialToken").at("id").get<std::string>();
    for (const auto& id : json.at("special_tokens").at(name).at("ids"))
      (seen ? after : before).push_back(checked_id(id, "/post_processor/special_tokens"));
  }
  result.before.insert(result.before.begin(), before.begin(), before.end());
  result.after.insert(result.after.end(), after.begin(), after.end());
}

Bpe read_model(const Json& model, const std::unordered_map<std::string, TokenId>& vocabulary) {
  std::unordered_map<std::string, TokenId> by_bytes;
  by_bytes.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary)
    if (auto bytes = bytes_of_token(token)) by_bytes.emplace(std::move(*bytes), id);
  std::vector<Bpe::Merge> merges;
  merges.reserve(model.at("merges").size());
  for (const auto& merge : model.at("merges")) {
    std::string left, right;
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos) left = text.substr(0, space), right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2) {
      left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    }
    const auto a = vocabulary.find(left), b = vocabulary.find(right), both = vocabulary.find(left + right);
    if (a == vocabulary.end() || b == vocabulary.end() || both == vocabulary.end())
      throw Error("bad_tokenizer", "/model/merges/" + std::to_string(merges.size()),
                  "the merge " + brief(merge) + " names a token that the vocabulary lacks");
    merges.push_back({a->second, b->second, both->second});
  }
  TokenId unknown = -1;
  if (const auto found = model.find("unk_token"); found != model.end() && found->is_string()) {
    const auto id = vocabulary.find(found->get<std::string>());
    if (id != vocabulary.end()) unknown = id->second;
  }
  return {std::move(by_bytes), merges, unknown, model.value("fuse_unk", false), model.value("ignore_merges", false)};
}

void require_byte_level_bpe(const Json& json) {
  const Json& model = json.at("model");
  const bool has_merges = model.contains("merges");
  const std::string type = model.value("type", has_merges ? "BPE" : "unknown");
  if (type != "BPE") unsupported("/model/type", "a tokenizer of kind " + type);
  if (!has_merges) unsupported("/model", "a BPE model without merges");
  if (model.value("byte_fallback", false))
    unsupported("/model/byte_fallback", "a SentencePiece-style BPE (byte_fallback)");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto found = model.find(key);
        found != model.end() && found->is_string() && !found->get<std::string>().empty())
      unsupported(std::string("/model/") + key, std::string(key) + " " + brief(*found));
  if (const auto found = model.find("dropout"); found != model.end() && found->is_number() && found->get<double>() > 0)
    unsupported("/model/dropout", "BPE dropout");
}

}  // namespace

struct Tokenizer::Parts {
  std::string file;
  std::vector<NormalForm> normalizer;
  AddedTokens raw, normalized;  // looked for in the text as it is, and after normalization
  PreTokenizer pretokenizer;
  Bpe bpe;
  Template around;
  std::unordered_map<std::string, TokenId> ids;
  std::vector<std::string> bytes;    // by id
  std::vector<char> known, special;  // by id

  Parts(PreTokenizer pre, Bpe model) : pretokenizer(std::move(pre)), bpe(std::move(model)) {}

  std::string normal(std::string_view text) const {
    std::string result(text);
    for (const NormalForm form : normalizer) result = normalize(result, form);
    return result;
  }

  void encode_words(std::string_view text, std::vector<TokenId>& out) const {
    pretokenizer.split(text, [&](std::string_view word) { bpe.encode(word, out); });
  }

  void encode_part(std::string_view text, std::vector<TokenId>& out) const {
    std::string normalized_text;
    if (!normalizer.empty() && !is_ascii(text)) {
      normalized_text = normal(text);
      text = normalized_text;
    }
    if (normalized.empty()) return encode_words(text, out);
    normalized.split(
        text, [&](std::string_view part) { encode_words(part, out); }, [&](TokenId id) { out.push_back(id); });
  }

  void name(TokenId id, const std::string& token) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= bytes.size()) bytes.resize(at + 1), known.resize(at + 1), special.resize(at + 1);
    bytes[at] = bytes_of_token(token).value_or(token);
    known[at] = 1;
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

Json read_tokenizer_file(const std::filesystem::path& path, std::filesystem::path& file) {
  file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  if (!std::filesystem::exists(file)) {
    const std::filesystem::path folder = file.parent_path();
    for (const char* other : {"tokenizer.model", "spiece.model"})
      if (std::filesystem::exists(folder / other))
        throw Error("tokenizer_unsupported", "",
                    "the folder has a SentencePiece " + std::string(other) + " but no tokenizer.json", kRemedy)
            .in_file(file);
    throw Error("file_missing", "", "there is no such file, and the data are text",
                std::string("put the model's tokenizer.json there, or ") + kRemedy)
        .in_file(file);
  }
  return read_json_file(file);
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::filesystem::path file;
  const Json json = read_tokenizer_file(path, file);
  try {
    require_byte_level_bpe(json);
    std::unordered_map<std::string, TokenId> ids;
    const Json& vocabulary = json.at("model").at("vocab");
    if (!vocabulary.is_object()) unsupported("/model/vocab", "a vocabulary that is not an object of token and id");
    ids.reserve(vocabulary.size());
    for (const auto& [token, id] : vocabulary.items()) ids.emplace(token, checked_id(id, "/model/vocab/" + token));
    auto parts =
        std::make_unique<Parts>(PreTokenizer(json.value("pre_tokenizer", Json())), read_model(json.at("model"), ids));
    parts->file = file.string();
    parts->normalizer = normalizer_of(json.value("normalizer", Json()));
    read_post_processor(json.value("post_processor", Json()), parts->around);
    for (const auto& [token, id] : ids) parts->name(id, token);
    for (const auto& entry : json.value("added_tokens", Json::array())) {
      AddedToken token{.id = checked_id(entry.at("id"), "/added_tokens"),
                       .content = entry.at("content").get<std::string>(),
                       .single_word = entry.value("single_word", false),
                       .lstrip = entry.value("lstrip", false),
                       .rstrip = entry.value("rstrip", false),
                       .normalized = entry.value("normalized", true),
                       .special = entry.value("special", false)};
      if (token.normalized) parts->normalized.add(token, parts->normal(token.content));
      else parts->raw.add(token, token.content);
      parts->name(token.id, token.content);
      parts->special[static_cast<std::size_t>(token.id)] = token.special;
      ids.insert_or_assign(token.content, token.id);
    }
    parts->ids = std::move(ids);
    return Tokenizer(std::move(parts));
  } catch (Error& error) {
    throw error.in_file(file);
  } catch (const Json::exception& error) {
    throw Error("bad_tokenizer", "", std::string("cannot be read as a tokenizer: ") + error.what()).in_file(file);
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::string repaired;
  if (!is_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special_tokens) ids = parts_->around.before;
  parts_->raw.split(
      text, [&](std::string_view part) { parts_->encode_part(part, ids); }, [&](TokenId id) { ids.push_back(id); });
  if (add_special_tokens) ids.insert(ids.end(), parts_->around.after.begin(), parts_->around.after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    const auto at = static_cast<std::size_t>(id);
    if (id < 0 || at >= parts_->bytes.size() || !parts_->known[at]) continue;
    if (skip_special_tokens && parts_->special[at]) continue;
    bytes += parts_->bytes[at];
  }
  return is_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

std::int64_t Tokenizer::vocabulary_size() const { return static_cast<std::int64_t>(parts_->bytes.size()); }
std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  const auto found = parts_->ids.find(std::string(token));
  return found == parts_->ids.end() ? std::nullopt : std::optional(found->second);
}
const std::vector<TokenId>& Tokenizer::before() const { return parts_->around.before; }
const std::vector<TokenId>& Tokenizer::after() const { return parts_->around.after; }
const std::string& Tokenizer::file() const { return parts_->file; }

}  // namespace shardfit::tokenizer
