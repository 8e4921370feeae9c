// The documents of text and JSON-lines files, one after another.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/dataset.hpp"

namespace shardfit::data {

// A document as it stands in its file, or a piece of one that is too long to be taken at once.
struct RawDocument {
  enum class Kind { kText, kPromptCompletion, kIds } kind = Kind::kText;
  std::string text;  // kText; the prompt of kPromptCompletion
  std::string completion;
  std::vector<std::int32_t> ids;     // kIds
  std::vector<std::int32_t> labels;  // kIds, may be empty: all supervised
  bool first = true, last = true;    // pieces of one document: only the first begins it, only the last ends it
  std::string file, where;           // for errors: "line 12"
};

struct Document {
  std::vector<std::int32_t> ids, labels;  // labels: empty = all supervised
  bool repaired = false;                  // bytes that were not UTF-8 were taken as U+FFFD
};

// The files of `source` in order: folders hold regular files, taken at any depth in byte order of their paths, hidden
// ones left out; of a folder, jsonl takes *.jsonl and tokens takes files with a .json beside them. Throws
// Error{file_missing | data_empty}.
std::vector<std::filesystem::path> files_of(const Source& source);

// Calls `give` with each document of a text or jsonl file.
void read_documents(const Source& source, const std::filesystem::path& file,
                    const std::function<void(RawDocument&&)>& give);

// Token ids and labels of a document. A prompt is not supervised, its completion is, and the end-of-text token that is
// put after it too. Throws Error{out_of_range} for an id that the model does not have.
Document tokenize(const Source& source, const RawDocument& raw);

}  // namespace shardfit::data
