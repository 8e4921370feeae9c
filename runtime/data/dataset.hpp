// The rows a model trains on: documents as token ids, packed or one a row, cut and padded to sequence_length.
//
//   packing true   documents follow one another with the end-of-text token between them and are cut at sequence_length;
//   only the
//                  last row can be short. Attention and positions restart at each document (and at the start of a row).
//   packing false  one document a row, truncated.
//   A short row is padded on the right; padding has label -100 and lies outside every document.
//
// Tokens come from a cache file (token_cache.hpp) and are read row by row with pread: a Dataset holds no tokens in
// memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"
#include "selector/job/job.hpp"

namespace shardfit::data {

inline constexpr std::int32_t kNotSupervised = -100;

struct Row {
  std::int64_t number = 0;           // row of the data, counted from 0 over all files in order ("sample_ids")
  std::int64_t length = 0;           // tokens before the padding
  std::vector<std::int32_t> ids;     // [sequence_length], padded with `padding_id`
  std::vector<std::int32_t> labels;  // [sequence_length], aligned with ids (the loss shifts), kNotSupervised where none
  std::vector<std::int32_t> positions;  // [sequence_length], counted from 0 in each document; 0 in the padding
  std::vector<std::int32_t>
      document_starts;  // where documents begin in the row, ascending, the first is 0; empty for a row of no tokens
  std::int64_t supervised = 0;  // labels of positions 1 and on that are not kNotSupervised
};

struct Source {
  std::vector<std::string> files;  // files or folders, resolved; folders are read in byte order of their paths
  std::string format = "text";     // text | jsonl | tokens
  std::string text_key = "text";
  bool packing = true;
  std::int64_t sequence_length = 0;
  std::int64_t vocabulary = 0;                      // ids must be below this; 0 = unchecked
  const tokenizer::Tokenizer* tokenizer = nullptr;  // needed for text, and for jsonl rows without input_ids
  std::optional<std::int32_t> end_of_text;          // needed by packing where there is more than one document
  std::int32_t padding_id = 0;
  std::filesystem::path cache_folder;  // where the token cache is kept: <output>/cache
};

// `files` and options as the job states them: data.train, or data.eval where `eval`. Throws Error{missing_key} if the
// job has no data.
Source source_of(const job::Job& job, bool eval, const std::filesystem::path& output_folder, std::int64_t vocabulary,
                 const tokenizer::Tokenizer* tokenizer, std::optional<std::int32_t> end_of_text);

class Dataset {
 public:
  // Finds the token cache of `source` or makes it. All ranks may call this at once: one makes the cache under a lock,
  // the others wait for it as long as it grows, at most `wait_seconds` without growth. Throws Error (file and line of
  // the bad row).
  static Dataset open(const Source& source, double wait_seconds = 600);

  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;
  ~Dataset();

  std::int64_t rows() const;
  std::int64_t documents() const;
  std::int64_t tokens() const;              // in all documents, separators included
  Row row(std::int64_t number) const;       // safe from several threads
  const std::string& content_hash() const;  // of the files' bytes and the tokenizer: the same text gives the same hash
  const std::vector<std::string>& warnings() const;

 private:
  struct Parts;
  explicit Dataset(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace shardfit::data
