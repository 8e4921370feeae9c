// Reading a checkpoint, and checking one.
#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <unordered_map>

#include "regions/base/error.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/xxh64.hpp"

namespace shardfit::checkpoint {

struct Checkpoint::Parts {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<SafetensorsFile> files;  // by rank
  struct At {
    std::size_t unit, parameter;
  };
  std::unordered_map<std::string, At> where;

  const At& at(const std::string& parameter) const {
    const auto found = where.find(parameter);
    if (found == where.end())
      throw Error("checkpoint_mismatch", "tensor " + parameter, "is not in the checkpoint",
                  "resume with the model that was trained")
          .in_file(folder.string());
    return found->second;
  }
};

Checkpoint::Checkpoint(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  auto parts = std::make_unique<Parts>();
  parts->folder = folder;
  parts->manifest = read_complete(folder);
  const Manifest& manifest = parts->manifest;
  for (std::size_t u = 0; u < manifest.units.size(); ++u)
    for (std::size_t p = 0; p < manifest.units[u].parameters.size(); ++p)
      parts->where.emplace(manifest.units[u].parameters[p].name, Parts::At{u, p});
  for (std::int64_t rank = 0; rank < manifest.ranks; ++rank) {
    parts->files.emplace_back(folder / rank_file(rank, manifest.ranks));
    for (const FlatUnit& unit : manifest.units)
      for (const Kind kind : {Kind::kParameters, Kind::kExpAvg, Kind::kExpAvgSq}) {
        if (kind != Kind::kParameters && !unit.states) continue;
        const StoredTensor* tensor = parts->files.back().find(fmt::format("{}.{}", unit.name, name_of(kind)));
        if (tensor == nullptr || tensor->storage != Storage::kF32 || tensor->elements() != unit.slice(manifest.ranks))
          throw Error("checkpoint_corrupt", fmt::format("tensor {}.{}", unit.name, name_of(kind)),
                      "is not as manifest.json says", "resume from an older checkpoint", kExitFailed)
              .in_file(parts->files.back().path().string());
      }
  }
  return Checkpoint(std::move(parts));
}

std::filesystem::path Checkpoint::folder() const { return parts_->folder; }
std::int64_t Checkpoint::step() const { return parts_->manifest.step; }
std::int64_t Checkpoint::ranks() const { return parts_->manifest.ranks; }
const std::vector<FlatUnit>& Checkpoint::units() const { return parts_->manifest.units; }
const std::vector<std::pair<std::string, std::string>>& Checkpoint::tied() const { return parts_->manifest.tied; }
std::string Checkpoint::job_json() const { return parts_->manifest.job_json; }
std::string Checkpoint::plan_json() const { return parts_->manifest.plan_json; }
std::string Checkpoint::training_json() const { return parts_->manifest.training_json; }
std::filesystem::path Checkpoint::model_folder() const { return parts_->folder / "model"; }

const FlatParameter* Checkpoint::find(const std::string& parameter) const {
  const auto found = parts_->where.find(parameter);
  return found == parts_->where.end() ? nullptr
                                      : &parts_->manifest.units[found->second.unit].parameters[found->second.parameter];
}

bool Checkpoint::has_states(const std::string& parameter) const {
  return parts_->manifest.units[parts_->at(parameter).unit].states;
}

void Checkpoint::read(const std::string& parameter, Kind kind, std::int64_t first, std::span<float> out) const {
  const Parts::At at = parts_->at(parameter);
  const FlatUnit& unit = parts_->manifest.units[at.unit];
  const FlatParameter& flat = unit.parameters[at.parameter];
  if (first < 0 || first > flat.elements() || static_cast<std::int64_t>(out.size()) > flat.elements() - first)
    throw Error("out_of_range", "tensor " + parameter,
                fmt::format("elements {} and {} more were asked for; it has {}", first, out.size(), flat.elements()),
                "", kExitFailed);
  const std::string tensor = fmt::format("{}.{}", unit.name, name_of(kind));
  const std::int64_t slice = unit.slice(parts_->manifest.ranks);
  for (std::int64_t element = flat.offset + first; !out.empty();) {
    const std::int64_t rank = element / slice, within = element % slice;
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(slice - within, static_cast<std::int64_t>(out.size())));
    parts_->files[static_cast<std::size_t>(rank)].read_fp32(tensor, within, out.first(count));
    element += static_cast<std::int64_t>(count);
    out = out.subspan(count);
  }
}

void Checkpoint::read_slice(const FlatUnit& unit, Kind kind, std::int64_t rank, std::int64_t ranks,
                            std::span<float> out, std::vector<std::string>* without_states) const {
  const std::int64_t begin = rank * unit.slice(ranks), end = begin + static_cast<std::int64_t>(out.size());
  std::fill(out.begin(), out.end(), 0.0f);
  for (const FlatParameter& parameter : unit.parameters) {
    const Parts::At at = parts_->at(parameter.name);
    if (parts_->manifest.units[at.unit].parameters[at.parameter].shape != parameter.shape)
      throw Error("checkpoint_mismatch", "tensor " + parameter.name, "has another shape in the checkpoint",
                  "resume with the model that was trained")
          .in_file(parts_->folder.string());
    if (kind != Kind::kParameters && !parts_->manifest.units[at.unit].states) {
      if (without_states != nullptr) without_states->push_back(parameter.name);
      continue;
    }
    const std::int64_t from = std::max(begin, parameter.offset),
                       to = std::min(end, parameter.offset + parameter.elements());
    if (from < to)
      read(parameter.name, kind, from - parameter.offset,
           out.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from)));
  }
}

Verified verify(const std::filesystem::path& folder, std::int64_t part, std::int64_t parts) {
  const Manifest manifest = read_complete(folder);
  Verified verified{manifest.step, 0, 0};
  std::vector<std::byte> buffer(std::size_t{4} << 20);
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    if (static_cast<std::int64_t>(i) % parts != part) continue;
    const ManifestFile& file = manifest.files[i];
    const std::filesystem::path path = folder / file.name;
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const auto corrupt = [&](const std::string& what) {
      return Error("checkpoint_corrupt", "", what, "resume from an older checkpoint", kExitFailed)
          .in_file(path.string());
    };
    if (descriptor < 0) throw corrupt("cannot be opened");
    Xxh64 hash;
    std::int64_t bytes = 0;
    ssize_t count = 0;
    while ((count = ::read(descriptor, buffer.data(), buffer.size())) > 0) {
      hash.update(std::span(buffer).first(static_cast<std::size_t>(count)));
      bytes += count;
    }
    ::close(descriptor);
    if (count < 0) throw corrupt("cannot be read");
    if (bytes != file.bytes || hash.hex() != file.xxh64) throw corrupt("does not match its checksum in manifest.json");
    ++verified.files;
    verified.bytes += bytes;
  }
  return verified;
}

}  // namespace shardfit::checkpoint
