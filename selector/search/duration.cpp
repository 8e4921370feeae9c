#include "selector/search/duration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::search {

namespace fs = std::filesystem;

namespace {

constexpr double kBytesPerToken = 4.0;  // English prose under vocabularies of 32k to 150k pieces: 3.6 to 4.6
constexpr std::size_t kMostFiles = 1'000'000;

double bytes_under(const fs::path& path, std::size_t& files, const std::string& where) {
  std::error_code ec;
  if (fs::is_regular_file(path, ec)) {
    ++files;
    return static_cast<double>(fs::file_size(path, ec));
  }
  if (!fs::is_directory(path, ec))
    throw Error("file_missing", where, "data \"" + path.string() + "\" is not there",
                "correct the path, or state data.tokens");
  double bytes = 0;
  for (auto it = fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied, ec);
       !ec && it != fs::recursive_directory_iterator(); it.increment(ec)) {
    if (!it->is_regular_file(ec)) continue;
    if (it->path().extension() == ".json") continue;  // beside a token file: its description
    bytes += static_cast<double>(it->file_size(ec));
    if (++files > kMostFiles)
      throw Error("file_too_large", where, "data \"" + path.string() + "\" holds more than a million files",
                  "state data.tokens");
  }
  return bytes;
}

double width_of_tokens(const fs::path& file) {
  std::error_code ec;
  const fs::path description = file.string() + ".json";
  if (!fs::is_regular_file(description, ec)) return 2;
  const Json d = read_json_file(description);
  return d.is_object() && d.contains("dtype") && d["dtype"] == "uint32" ? 4 : 2;
}

}  // namespace

std::int64_t Duration::steps_for(std::int64_t batch, std::int64_t sequence_length) const {
  if (steps > 0) return steps;
  const double per_step =
      std::max(1.0, static_cast<double>(batch) * static_cast<double>(std::max<std::int64_t>(sequence_length, 1)));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(std::ceil(tokens / per_step), 1e15)));
}

Duration duration_of(const job::Job& job) {
  Duration d;
  if (job.duration_steps) {
    d.steps = *job.duration_steps;
  } else if (job.duration_tokens) {
    d.tokens = static_cast<double>(*job.duration_tokens);
  } else if (job.duration_epochs) {
    double tokens = 0;
    if (job.data && job.data->tokens) {
      tokens = static_cast<double>(*job.data->tokens);
    } else {
      if (!job.data || job.data->train.empty())
        throw Error("missing_key", "/data/train", "is missing, and the duration counts epochs of it",
                    "name the data, or state data.tokens");
      std::size_t files = 0;
      const bool raw = job.data->format == "tokens";
      for (size_t i = 0; i < job.data->train.size(); ++i) {
        const fs::path path = job.resolve(job.data->train[i]);
        const double bytes = bytes_under(path, files, "/data/train/" + std::to_string(i));
        tokens += bytes / (raw ? width_of_tokens(path) : kBytesPerToken);
      }
      if (!raw)
        d.assumed.push_back(fmt::format(
            "data.tokens={:.0f} (bytes of the files / {:.0f}; state data.tokens to be exact)", tokens, kBytesPerToken));
      if (tokens < 1)
        throw Error("out_of_range", "/data/train", "the data are empty", "name files with text, or state data.tokens");
    }
    d.tokens = tokens * *job.duration_epochs;
  } else {
    d.steps = 1000;
    d.assumed.push_back("duration=1000 steps (not stated: times and costs are for 1000 steps)");
  }
  return d;
}

}  // namespace shardfit::search
