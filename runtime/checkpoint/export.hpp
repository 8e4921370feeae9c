// A checkpoint of any number of ranks as a Hugging Face folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/file_layer.hpp"
#include "runtime/checkpoint/safetensors.hpp"

namespace shardfit::checkpoint {

struct ExportOptions {
  Storage storage = Storage::kF32;               // kF32 | kBf16 | kF16
  std::int64_t max_shard_bytes = 5'000'000'000;  // --max-shard-size
  bool states = false;                           // also states.safetensors: NAME.exp_avg, NAME.exp_avg_sq, step
};
struct Exported {
  std::int64_t tensors = 0, bytes = 0;
  std::vector<std::string> files;
};
// `source`: a checkpoint, or an output folder (its last complete one). `target` must not exist: Error{exists}.
// Writes all tensors of the model, tied ones once, config.json (with the dtype written) and the tokenizer's files.
Exported export_huggingface(FileLayer& files, const std::filesystem::path& source, const std::filesystem::path& target,
                            const ExportOptions& options = {});
// "5GB", "500MB", "2GiB", "1000000" -> bytes. Throws Error{bad_size}.
std::int64_t parse_size(const std::string& text, const std::string& where);

}  // namespace shardfit::checkpoint
