#include "runtime/tokenizer/pretokenizer.hpp"

#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace shardfit::tokenizer {
namespace {

// byte_level.rs of `tokenizers`: the words of GPT-2.
constexpr const char* kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void unsupported(const std::string& what) {
  throw Error("tokenizer_unsupported", "/pre_tokenizer",
              what + " is not supported: only byte-level BPE tokenizers are (GPT-2, SmolLM2, Llama 3, Qwen)",
              "tokenize the data beforehand and give it as format \"tokens\" or as \"input_ids\"");
}

std::string escaped(std::string_view literal) {
  std::string regex;
  for (const char c : literal) {
    if (std::string_view(R"(\^$.|?*+()[]{}-&#~ )").find(c) != std::string_view::npos && c != ' ') regex += '\\';
    regex += c;
  }
  return regex;
}

SplitBehavior behavior_of(const std::string& name) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  unsupported("the split behavior " + name);
}

}  // namespace

std::vector<Piece> join_pieces(SplitBehavior behavior, const std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated: return pieces;
    case SplitBehavior::kRemoved:
      for (const Piece& piece : pieces)
        if (!piece.match) out.push_back(piece);
      return out;
    case SplitBehavior::kContiguous:
      for (const Piece& piece : pieces) {
        if (!out.empty() && piece.match == previous_match) out.back().end = piece.end;
        else out.push_back(piece);
        previous_match = piece.match;
      }
      return out;
    case SplitBehavior::kMergedWithPrevious:
      for (const Piece& piece : pieces) {
        if (piece.match && !previous_match && !out.empty()) out.back().end = piece.end;
        else out.push_back(piece);
        previous_match = piece.match;
      }
      return out;
    case SplitBehavior::kMergedWithNext:
      for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
        if (piece->match && !previous_match && !out.empty()) out.back().begin = piece->begin;
        else out.push_back(*piece);
        previous_match = piece->match;
      }
      return {out.rbegin(), out.rend()};
  }
  return out;
}

struct PreTokenizer::Step {
  std::optional<Pattern> pattern;          // or
  bool (*character)(CodePoint) = nullptr;  // each such character is a match
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  bool prefix_space = false;  // put before a text that does not begin with one

  std::vector<Piece> pieces(std::string_view text) const {
    std::vector<Piece> out;
    std::size_t done = 0;
    const auto found = [&](std::size_t begin, std::size_t end) {
      if (begin > done) out.push_back({done, begin, invert});
      out.push_back({begin, end, !invert});
      done = end;
    };
    if (pattern) {
      while (const auto match = pattern->find(text, done)) found(match->first, match->second);
    } else {
      for (std::size_t at = 0; at < text.size();) {
        const Decoded d = decode_at(text, at);
        if (character(d.value)) found(at, at + d.length);
        at += d.length;
      }
    }
    if (done < text.size()) out.push_back({done, text.size(), invert});
    return out;
  }
};

PreTokenizer::PreTokenizer(const nlohmann::json& json) {
  if (!json.is_null()) add(json);
  if (!byte_level_) unsupported("a pre-tokenizer without a ByteLevel step");
}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::add(const nlohmann::json& json, int depth) {
  if (depth > 16) unsupported("a sequence nested more than 16 deep");
  const std::string type = json.value("type", "");
  if (type == "Sequence") {
    for (const auto& part : json.at("pretokenizers")) add(part, depth + 1);
    return;
  }
  if (byte_level_) unsupported("the pre-tokenizer " + type + " after ByteLevel");
  Step step;
  if (type == "ByteLevel") {
    byte_level_ = true;
    step.prefix_space = json.value("add_prefix_space", false);
    if (json.value("use_regex", true)) step.pattern.emplace(kGpt2Words);
    else if (!step.prefix_space) return;
  } else if (type == "Split") {
    const auto& pattern = json.at("pattern");
    step.pattern.emplace(pattern.contains("Regex") ? pattern.at("Regex").get<std::string>()
                                                   : escaped(pattern.at("String").get<std::string>()));
    step.behavior = behavior_of(json.at("behavior").get<std::string>());
    step.invert = json.value("invert", false);
  } else if (type == "Digits") {
    step.character = &is_numeric;
    step.behavior = json.value("individual_digits", false) ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  } else if (type == "Punctuation") {
    step.character = &is_punctuation;
    step.behavior = behavior_of(json.value("behavior", "Isolated"));
  } else if (type == "WhitespaceSplit") {
    step.character = &is_space;
    step.behavior = SplitBehavior::kRemoved;
  } else {
    unsupported("the pre-tokenizer " + type);
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::run(std::size_t index, std::string_view text,
                       const std::function<void(std::string_view)>& word) const {
  if (text.empty()) return;
  if (index == steps_.size()) return word(text);
  const Step& step = steps_[index];
  std::string prefixed;
  if (step.prefix_space && text.front() != ' ') {
    prefixed = ' ';
    prefixed += text;
    text = prefixed;
  }
  if (!step.pattern && step.character == nullptr) return run(index + 1, text, word);
  if (step.behavior == SplitBehavior::kIsolated && step.pattern) {  // the common case, without a list of pieces
    std::size_t done = 0;
    while (const auto match = step.pattern->find(text, done)) {
      if (match->first > done) run(index + 1, text.substr(done, match->first - done), word);
      run(index + 1, text.substr(match->first, match->second - match->first), word);
      done = match->second;
    }
    if (done < text.size()) run(index + 1, text.substr(done), word);
    return;
  }
  for (const Piece& piece : join_pieces(step.behavior, step.pieces(text)))
    run(index + 1, text.substr(piece.begin, piece.end - piece.begin), word);
}

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& word) const {
  run(0, text, word);
}

}  // namespace shardfit::tokenizer
