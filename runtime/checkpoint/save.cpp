// Writing a checkpoint: begin, write_rank, commit.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/complete.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/xxh64.hpp"

namespace shardfit::checkpoint {
namespace {

constexpr const char* kUnfinished = ".tmp-";
constexpr const char* kModelFiles[] = {"config.json",
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja",
                                       "chat_template.json"};

std::string record_file(std::int64_t rank) { return fmt::format("rank-{:05}.record", rank); }

// The slice as a tensor of the rank's file; what the span lacks of it is zero.
TensorToWrite slice_tensor(const FlatUnit& unit, Kind kind, std::int64_t ranks, const SliceOf& slice_of) {
  const std::int64_t elements = unit.slice(ranks);
  return {fmt::format("{}.{}", unit.name, name_of(kind)),
          Storage::kF32,
          {elements},
          [&unit, kind, elements, &slice_of](std::int64_t first_byte, std::span<std::byte> out) {
            const auto values = std::as_bytes(slice_of(unit, kind));
            if (values.size() > static_cast<std::size_t>(elements) * 4)
              throw Error("internal", "unit " + unit.name,
                          fmt::format("a slice of {} elements was given where {} belong to the rank", values.size() / 4,
                                      elements),
                          "", kExitFailed);
            const auto first = static_cast<std::size_t>(first_byte);
            const std::size_t there = first >= values.size() ? 0 : std::min(out.size(), values.size() - first);
            if (there > 0) std::memcpy(out.data(), values.data() + first, there);
            std::fill(out.begin() + static_cast<std::ptrdiff_t>(there), out.end(), std::byte{0});
          }};
}

ManifestFile write_copy(FileLayer& files, const std::filesystem::path& unfinished, const std::string& name,
                        const std::string& bytes) {
  write_file(files, unfinished / name, bytes);
  Xxh64 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  return {name, static_cast<std::int64_t>(bytes.size()), hash.hex()};
}

void remove_quietly(FileLayer& files, const std::filesystem::path& path) {
  try {
    files.remove_all(path);
  } catch (const Error& error) {
    if (error.code != "storage_failed") throw;  // what could not be removed now is removed by the next begin()
  }
}

void rotate(FileLayer& files, const std::filesystem::path& output, const std::filesystem::path& newest,
            std::int64_t save_total_limit) {
  if (save_total_limit <= 0) return;
  auto complete = list_complete(output).complete;  // newest first
  std::int64_t kept = 0;
  for (const auto& checkpoint : complete) {
    if (++kept <= save_total_limit || checkpoint.path == newest) continue;
    try {
      const std::filesystem::path aside =
          checkpoint.path.string() + kUnfinished + "removed";  // never half a folder under a good name
      files.rename(checkpoint.path, aside);
      remove_quietly(files, aside);
    } catch (const Error& error) {
      if (error.code != "storage_failed") throw;
    }
  }
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& output) { return output / "checkpoints"; }
std::string step_folder(std::int64_t step) { return fmt::format("step-{:08}", step); }
std::filesystem::path unfinished_folder(const std::filesystem::path& output, std::int64_t step,
                                        const std::string& tag) {
  return checkpoints_folder(output) / (step_folder(step) + kUnfinished + tag);
}

std::filesystem::path begin(FileLayer& files, const std::filesystem::path& output, std::int64_t step,
                            const std::string& tag) {
  const std::filesystem::path folder = checkpoints_folder(output);
  std::error_code error;
  std::vector<std::filesystem::path> left;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().filename().string().find(kUnfinished) != std::string::npos) left.push_back(entry->path());
  for (const auto& path : left) remove_quietly(files, path);
  const std::filesystem::path unfinished = unfinished_folder(output, step, tag);
  files.make_folder(unfinished / "model");
  return unfinished;
}

std::int64_t write_rank(FileLayer& files, const std::filesystem::path& unfinished, const SaveState& state,
                        std::int64_t rank, const SliceOf& slice_of) {
  std::vector<TensorToWrite> tensors;
  for (const FlatUnit& unit : state.units)
    for (const Kind kind : {Kind::kParameters, Kind::kExpAvg, Kind::kExpAvgSq})
      if (kind == Kind::kParameters || unit.states) tensors.push_back(slice_tensor(unit, kind, state.ranks, slice_of));
  std::vector<ManifestFile> done;
  const std::string name = rank_file(rank, state.ranks);
  const Written written = write_safetensors(files, unfinished / name, tensors,
                                            {{"rank", std::to_string(rank)}, {"step", std::to_string(state.step)}});
  done.push_back({name, written.bytes, written.xxh64});
  if (rank == 0) {
    const std::filesystem::path model =
        std::filesystem::is_directory(state.model_folder) ? state.model_folder : state.model_folder.parent_path();
    for (const char* file : kModelFiles)
      if (std::filesystem::is_regular_file(model / file))
        done.push_back(write_copy(files, unfinished, std::string("model/") + file, read_file(model / file)));
    files.sync_folder(unfinished / "model");
  }
  OrderedJson record = OrderedJson::array();
  std::int64_t bytes = 0;
  for (const ManifestFile& file : done) {
    record.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", file.xxh64}});
    bytes += file.bytes;
  }
  write_file(files, unfinished / record_file(rank), record.dump());
  return bytes;
}

Committed commit(FileLayer& files, const std::filesystem::path& unfinished, const std::filesystem::path& output,
                 const SaveState& state, std::int64_t save_total_limit) {
  Manifest manifest;
  manifest.step = state.step;
  manifest.ranks = state.ranks;
  manifest.units = state.units;
  manifest.tied = state.tied;
  manifest.job_json = state.job_json;
  manifest.plan_json = state.plan_json;
  manifest.training_json = state.training_json;
  Committed committed;
  for (std::int64_t rank = 0; rank < state.ranks; ++rank) {
    const std::filesystem::path record = unfinished / record_file(rank);
    for (const auto& file : Json::parse(read_file(record))) {
      manifest.files.push_back({file.at("name").get<std::string>(), file.at("bytes").get<std::int64_t>(),
                                file.at("xxh64").get<std::string>()});
      committed.bytes += manifest.files.back().bytes;
    }
    files.remove_all(record);
  }
  const auto existing = list_complete(output).complete;
  manifest.sequence = existing.empty() ? 1 : existing.front().sequence + 1;
  const std::string text = to_text(manifest);
  committed.bytes += static_cast<std::int64_t>(text.size());
  write_file(files, unfinished / "manifest.json", text);
  files.sync_folder(unfinished);
  committed.path = checkpoints_folder(output) / step_folder(state.step);
  files.replace_folder(unfinished, committed.path);
  files.sync_folder(checkpoints_folder(output));
  remove_quietly(files, unfinished);  // holds a former checkpoint of the same step, if there was one
  rotate(files, output, committed.path, save_total_limit);
  return committed;
}

}  // namespace shardfit::checkpoint
