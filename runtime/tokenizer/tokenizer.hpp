// Text to token ids and back, by a Hugging Face tokenizer.json of the byte-level BPE kind (GPT-2, SmolLM2, Llama 3,
// Qwen2/3). Results equal those of the Python library `tokenizers`. Knows nothing of LibTorch.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::tokenizer {

using TokenId = std::int32_t;

class Tokenizer {
 public:
  // `path`: a model folder that holds tokenizer.json, or the file itself. Throws Error{file_missing | bad_json |
  // tokenizer_unsupported}; the last names the kind or part that is not byte-level BPE (Unigram, WordPiece, Metaspace,
  // ...).
  static Tokenizer load(const std::filesystem::path& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text`. Bytes that are not UTF-8 count as U+FFFD. `add_special_tokens`: also what the file's
  // post-processor puts around a text (Llama 3: its begin-of-text token), as transformers does. Safe from several
  // threads at once.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = true) const;
  // The text of `ids`; ids without a token are skipped. Bytes that do not form UTF-8 become U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = false) const;

  // What encode() puts before and after a text when asked for special tokens.
  const std::vector<TokenId>& before() const;
  const std::vector<TokenId>& after() const;

  std::int64_t vocabulary_size() const;                        // largest id + 1, added tokens included
  std::optional<TokenId> id_of(std::string_view token) const;  // by the spelling in the file, e.g. "<|endoftext|>"
  const std::string& file() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// The end-of-text token of a model folder: `eos_token` of tokenizer_config.json or special_tokens_map.json (by
// `tokenizer`, where one is given), else `eos_token_id` of config.json or generation_config.json (the first of a list).
// nullopt where none says.
std::optional<TokenId> end_of_text(const std::filesystem::path& model_folder, const Tokenizer* tokenizer);

}  // namespace shardfit::tokenizer
