// Checkpoints that survive a crash at any instant, and can be read by any number of ranks.
//
//   OUTPUT/checkpoints/step-00000010.tmp-<tag>/   while being written
//   OUTPUT/checkpoints/step-00000010/             complete: renamed after everything in it, manifest.json last, was
//   fsynced
//     rank-00000-of-00002.safetensors             fp32 slices "UNIT.parameters", "UNIT.exp_avg", "UNIT.exp_avg_sq"
//     model/config.json, model/tokenizer.json...  copies, so that a checkpoint can be exported alone
//     manifest.json                               step, layout, files with sizes and checksums, job, plan hash,
//     training state
//
// Saving, on all ranks (the engine's barriers share failures, so that no rank goes on alone):
//   1. rank 0: begin(...)          barrier; the other ranks know the folder by unfinished_folder(same arguments)
//   2. all:    write_rank(...)     barrier, with "did it work" reduced over the ranks
//   3. rank 0: commit(...)         barrier
// A failure anywhere leaves a .tmp- folder that the next begin() removes. The newest checkpoint is the one saved last,
// whatever its step (a run resumed from an older one may save lower steps); after an ordinary run that is the highest
// step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/file_layer.hpp"
#include "runtime/checkpoint/layout.hpp"

namespace shardfit::checkpoint {

// What is saved beside the buffers; the same on all ranks.
struct SaveState {
  std::int64_t step = 0;
  std::int64_t ranks =
      1;  // files of the checkpoint = ranks that own different slices (stage 0: ranks may all own slices of their copy)
  std::vector<FlatUnit> units;
  std::string job_json;              // job::to_json(job).dump(): compared on resume
  std::string plan_json;             // plan as run
  std::string training_json = "{}";  // the engine's own: samples seen, tokens seen, data hash, ...
  std::vector<std::pair<std::string, std::string>>
      tied;                            // {alias, owner}: "lm_head.weight" -> "model.embed_tokens.weight"
  std::filesystem::path model_folder;  // config.json and tokenizer files are copied from here
};

// The rank's slice of a unit: unit.slice(ranks) elements, or fewer where the rest is padding (written as zeros). The
// span must stay valid until the next call.
using SliceOf = std::function<std::span<const float>(const FlatUnit& unit, Kind kind)>;

std::filesystem::path checkpoints_folder(const std::filesystem::path& output);
std::string step_folder(std::int64_t step);  // "step-00000010"

// `tag`: the same word on all ranks, new for each attempt (a run id). Removes left-over .tmp- folders.
std::filesystem::path begin(FileLayer& files, const std::filesystem::path& output, std::int64_t step,
                            const std::string& tag);
std::filesystem::path unfinished_folder(const std::filesystem::path& output, std::int64_t step, const std::string& tag);
// Returns the bytes written. Throws Error{storage_failed, exit 13}.
std::int64_t write_rank(FileLayer& files, const std::filesystem::path& unfinished, const SaveState& state,
                        std::int64_t rank, const SliceOf& slice_of);
struct Committed {
  std::filesystem::path path;
  std::int64_t bytes = 0;  // of all files
};
// Writes manifest.json, renames, then removes older complete checkpoints beyond `save_total_limit` (0 = keep all); the
// newest complete one is never removed, and a failure to remove is not an error.
Committed commit(FileLayer& files, const std::filesystem::path& unfinished, const std::filesystem::path& output,
                 const SaveState& state, std::int64_t save_total_limit);

// A complete checkpoint, for reading. Safe from several threads.
class Checkpoint {
 public:
  // Reads manifest.json and the files' headers and checks their sizes against it; throws Error{checkpoint_incomplete |
  // checkpoint_corrupt}. Checksums: verify().
  static Checkpoint open(const std::filesystem::path& folder);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  std::filesystem::path folder() const;
  std::int64_t step() const;
  std::int64_t ranks() const;
  const std::vector<FlatUnit>& units() const;
  const std::vector<std::pair<std::string, std::string>>& tied() const;
  std::string job_json() const;
  std::string plan_json() const;
  std::string training_json() const;
  std::filesystem::path model_folder() const;  // FOLDER/model

  const FlatParameter* find(const std::string& parameter) const;  // nullptr if not in the checkpoint
  bool has_states(const std::string& parameter) const;
  // Elements [first, first + out.size()) of a parameter (flattened, row-major), gathered from whatever ranks wrote
  // them.
  void read(const std::string& parameter, Kind kind, std::int64_t first, std::span<float> out) const;
  // The slice of `unit` that `rank` of `ranks` owns in today's layout (which may group parameters otherwise than the
  // saved one); padding is zero. States of parameters that had none are zero: those names are appended to
  // `without_states`.
  void read_slice(const FlatUnit& unit, Kind kind, std::int64_t rank, std::int64_t ranks, std::span<float> out,
                  std::vector<std::string>* without_states = nullptr) const;

 private:
  struct Parts;
  explicit Checkpoint(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// Reads every byte of the files f with f mod parts == part and compares the checksums (a rank of many can take its
// part). Throws Error{checkpoint_corrupt} naming the file.
struct Verified {
  std::int64_t step = 0, files = 0, bytes = 0;
};
Verified verify(const std::filesystem::path& folder, std::int64_t part = 0, std::int64_t parts = 1);

struct Found {
  std::filesystem::path path;
  std::int64_t step = 0;
  std::vector<std::string> skipped;  // "step-00000020: manifest.json is missing": newer folders that are not complete
};
// The newest complete checkpoint of an output folder (sizes are checked, checksums are not).
std::optional<Found> find_latest(const std::filesystem::path& output);
// `path` is a checkpoint folder, or an output folder (its newest complete one). Throws Error{checkpoint_missing}.
std::filesystem::path resolve(const std::filesystem::path& path);

// Throws Error{resume_mismatch} naming the first key (JSON pointer, both values) in which the jobs differ and that may
// not change between save and resume. Both are job::to_json(...).dump().
void check_resumable(const std::string& saved_job_json, const std::string& job_json);

}  // namespace shardfit::checkpoint
