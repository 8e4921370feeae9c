// manifest.json of a checkpoint: written last, it says what a complete checkpoint consists of.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/layout.hpp"

namespace shardfit::checkpoint {

struct ManifestFile {
  std::string name;  // relative to the checkpoint: "rank-00000-of-00002.safetensors", "model/config.json"
  std::int64_t bytes = 0;
  std::string xxh64;
};

struct Manifest {
  std::int64_t step = 0, ranks = 0;
  std::int64_t sequence = 0;  // counts the saves into an output folder: the highest is the newest
  std::vector<FlatUnit> units;
  std::vector<std::pair<std::string, std::string>> tied;
  std::vector<ManifestFile> files;
  std::string job_json, plan_json, training_json;
};

std::string to_text(const Manifest& manifest);
// Throws Error{checkpoint_corrupt} naming what is wrong, or Error{checkpoint_incomplete} where there is no manifest.
Manifest read_manifest(const std::filesystem::path& folder);
// Also compares the sizes of the files with the manifest; throws Error{checkpoint_corrupt} naming the file.
Manifest read_complete(const std::filesystem::path& folder);

std::string rank_file(std::int64_t rank, std::int64_t ranks);  // "rank-00000-of-00002.safetensors"

}  // namespace shardfit::checkpoint
