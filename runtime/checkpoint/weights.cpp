#include "runtime/checkpoint/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"

namespace shardfit::checkpoint {
namespace {

// Names that mean the same tensor, the given one first.
std::vector<std::string> spellings(const std::string& name) {
  std::vector<std::string> names{name};
  for (const std::string prefix : {"transformer.", "model."}) {
    if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
    else names.push_back(prefix + name);
  }
  return names;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::map<std::string, std::string> read_index(const std::filesystem::path& file) {
  const Json index = read_json_file(file);
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || found == index.end() || !found->is_object())
    throw Error("bad_json", "/weight_map", "is missing or not an object").in_file(file.string());
  std::map<std::string, std::string> map;
  for (const auto& [name, value] : found->items()) {
    if (!value.is_string() || value.get<std::string>().find('/') != std::string::npos ||
        value.get<std::string>().empty())
      throw Error("bad_json", "/weight_map/" + name, "is " + brief(value) + ", not the name of a file in the folder")
          .in_file(file.string());
    map.emplace(name, value.get<std::string>());
  }
  return map;
}

}  // namespace

struct HuggingFaceWeights::Parts {
  std::filesystem::path folder;
  std::map<std::string, SafetensorsFile> files;         // by file name
  std::map<std::string, const SafetensorsFile*> where;  // by tensor name

  // The file that has the tensor, and its name there.
  std::pair<const SafetensorsFile*, std::string> locate(const std::string& name) const {
    for (const std::string& spelling : spellings(name))
      if (const auto found = where.find(spelling); found != where.end()) return {found->second, spelling};
    return {nullptr, ""};
  }
};

HuggingFaceWeights::HuggingFaceWeights(const std::filesystem::path& folder) : parts_(std::make_unique<Parts>()) {
  parts_->folder = folder;
  const auto single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    const auto& file = parts_->files.emplace("model.safetensors", SafetensorsFile(single)).first->second;
    for (const auto& [name, tensor] : file.tensors()) parts_->where.emplace(name, &file);
  } else if (std::filesystem::exists(index)) {
    for (const auto& [name, file_name] : read_index(index)) {
      auto file = parts_->files.find(file_name);
      if (file == parts_->files.end())
        file = parts_->files.emplace(file_name, SafetensorsFile(folder / file_name)).first;
      if (file->second.find(name) == nullptr)
        throw Error("weights_missing", "tensor " + name,
                    "is not in " + file_name + " where model.safetensors.index.json says it is",
                    "fetch the model again")
            .in_file(folder.string());
      parts_->where.emplace(name, &file->second);
    }
  } else {
    const bool pickled = std::filesystem::exists(folder / "pytorch_model.bin") ||
                         std::filesystem::exists(folder / "pytorch_model.bin.index.json");
    throw Error(
        "weights_missing", "",
        pickled ? "has pytorch_model.bin only, which is not read"
                : "has neither model.safetensors nor model.safetensors.index.json",
        pickled ? "save the model as safetensors" : "name a folder with weights, or set train.init to \"random\"")
        .in_file(folder.string());
  }
}
HuggingFaceWeights::HuggingFaceWeights(HuggingFaceWeights&&) noexcept = default;
HuggingFaceWeights::~HuggingFaceWeights() = default;

const StoredTensor* HuggingFaceWeights::find(const std::string& name) const {
  const auto [file, spelling] = parts_->locate(name);
  return file == nullptr ? nullptr : file->find(spelling);
}

void HuggingFaceWeights::read(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t first,
                              std::span<float> out) const {
  const auto [file, spelling] = parts_->locate(name);
  if (file == nullptr)
    throw Error("weights_missing", "tensor " + name, "is not among the weights",
                "see that config.json belongs to these weights")
        .in_file(parts_->folder.string());
  if (file->find(spelling)->shape != shape)
    throw Error(
        "wrong_shape", "tensor " + name,
        "has the shape " + shape_text(file->find(spelling)->shape) + " where config.json asks for " + shape_text(shape),
        "see that config.json belongs to these weights")
        .in_file(file->path().string());
  file->read_fp32(spelling, first, out);
}

void HuggingFaceWeights::read_slice(const FlatUnit& unit, std::int64_t rank, std::int64_t ranks,
                                    std::span<float> out) const {
  const std::int64_t begin = rank * unit.slice(ranks), end = begin + static_cast<std::int64_t>(out.size());
  std::fill(out.begin(), out.end(), 0.0f);
  for (const FlatParameter& parameter : unit.parameters) {
    const std::int64_t from = std::max(begin, parameter.offset),
                       to = std::min(end, parameter.offset + parameter.elements());
    if (from < to)
      read(parameter.name, parameter.shape, from - parameter.offset,
           out.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from)));
  }
}

void HuggingFaceWeights::check(const std::vector<FlatUnit>& units) const {
  std::vector<std::string> missing, shaped;
  for (const FlatUnit& unit : units)
    for (const FlatParameter& parameter : unit.parameters) {
      const StoredTensor* tensor = find(parameter.name);
      if (tensor == nullptr) missing.push_back(parameter.name);
      else if (tensor->shape != parameter.shape)
        shaped.push_back(parameter.name + " " + shape_text(tensor->shape) + " instead of " +
                         shape_text(parameter.shape));
    }
  const auto few = [](std::vector<std::string> names) {
    const std::size_t count = names.size();
    names.resize(std::min<std::size_t>(count, 4));
    return join(names, ", ") + (count > 4 ? fmt::format(" and {} more", count - 4) : "");
  };
  const char* remedy = "see that config.json belongs to these weights";
  if (!missing.empty())
    throw Error("weights_missing", "", "lacks " + few(missing), remedy).in_file(parts_->folder.string());
  if (!shaped.empty()) throw Error("wrong_shape", "", "has " + few(shaped), remedy).in_file(parts_->folder.string());
}

std::vector<std::string> HuggingFaceWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : parts_->where) names.push_back(name);
  return names;
}

}  // namespace shardfit::checkpoint
