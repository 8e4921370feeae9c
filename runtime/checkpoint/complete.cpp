#include "runtime/checkpoint/complete.hpp"

#include <algorithm>
#include <tuple>

#include "regions/base/error.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/manifest.hpp"

namespace shardfit::checkpoint {

CompleteOnes list_complete(const std::filesystem::path& output) {
  CompleteOnes found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(checkpoints_folder(output), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_step =
        name.size() >= 6 && name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos;
    if (!is_step) continue;
    try {
      const Manifest manifest = read_complete(entry->path());
      found.complete.push_back({entry->path(), manifest.step, manifest.sequence});
    } catch (const Error& problem) {
      found.broken.push_back(name + ": " + problem.message);
    }
  }
  std::sort(found.complete.begin(), found.complete.end(),
            [](const auto& a, const auto& b) { return std::tie(a.sequence, a.step) > std::tie(b.sequence, b.step); });
  std::sort(found.broken.begin(), found.broken.end(), std::greater<>());
  return found;
}

std::optional<Found> find_latest(const std::filesystem::path& output) {
  const CompleteOnes ones = list_complete(output);
  if (ones.complete.empty()) return std::nullopt;
  Found found{ones.complete.front().path, ones.complete.front().step, {}};
  for (const std::string& broken : ones.broken)
    if (broken > found.path.filename().string()) found.skipped.push_back(broken);
  return found;
}

std::filesystem::path resolve(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path / "manifest.json", ignored)) return path;
  if (const auto found = find_latest(path)) return found->path;
  const CompleteOnes ones = list_complete(path);
  throw Error("checkpoint_missing", "",
              ones.broken.empty() ? "holds no complete checkpoint"
                                  : "holds no complete checkpoint (" + ones.broken.front() + ")",
              "name a folder step-N with a manifest.json, or an output folder with such checkpoints")
      .in_file(path.string());
}

}  // namespace shardfit::checkpoint
