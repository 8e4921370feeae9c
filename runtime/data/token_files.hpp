// Files of token ids as they come from other tools: raw little-endian uint16 or uint32, described by FILE.json beside
// FILE.
//   {"dtype": "uint16" | "uint32", "eos_token_id": 2}     eos_token_id: where documents end; default: the model's.
//   Other keys are ignored.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "runtime/data/dataset.hpp"

namespace shardfit::data {

struct TokenFile {
  std::filesystem::path path;  // absolute
  std::filesystem::path description;
  int width = 2;  // bytes a token
  std::int64_t tokens = 0;
  std::optional<std::int32_t> end_of_text;
};

// Throws Error naming FILE.json (missing, no dtype) or FILE (not a whole number of tokens).
TokenFile describe_token_file(const Source& source, const std::filesystem::path& path);
// Reads the file once: calls `document` with the first token of each document; returns whether the last token ends a
// document. Throws Error{out_of_range} for an id that the model does not have. `alive` is called now and then.
bool scan_token_file(const Source& source, const TokenFile& file,
                     const std::function<void(std::int64_t first)>& document, const std::function<void()>& alive);

}  // namespace shardfit::data
