#include "runtime/checkpoint/export.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace shardfit::checkpoint {
namespace {

const char* torch_name(Storage storage) {
  return storage == Storage::kBf16 ? "bfloat16" : storage == Storage::kF16 ? "float16" : "float32";
}

// A parameter (or its state) read from the checkpoint piece by piece and converted.
TensorToWrite tensor_from(const Checkpoint& checkpoint, const FlatParameter& parameter, Kind kind, std::string name,
                          Storage storage) {
  return {std::move(name), storage, parameter.shape,
          [&checkpoint, &parameter, kind, storage](std::int64_t first_byte, std::span<std::byte> out) {
            const std::int64_t width = bytes_of(storage);
            std::vector<float> values(out.size() / static_cast<std::size_t>(width));
            checkpoint.read(parameter.name, kind, first_byte / width, values);
            tensor_of("", {}, values, storage).fill(0, out);
          }};
}

std::int64_t bytes_to_write(const TensorToWrite& tensor) {
  std::int64_t bytes = bytes_of(tensor.storage);
  for (const std::int64_t d : tensor.shape) bytes *= d;
  return bytes;
}

// config.json with the dtype of the exported weights, under its old and its new name; everything else as it was.
std::string config_with(const std::filesystem::path& file, Storage storage) {
  OrderedJson config = OrderedJson::parse(read_file(file), nullptr, false, true);
  if (!config.is_object()) throw Error("bad_json", "", "is not a JSON object").in_file(file.string());
  config["torch_dtype"] = torch_name(storage);
  config["dtype"] = torch_name(storage);
  return config.dump(2) + "\n";
}

}  // namespace

std::int64_t parse_size(const std::string& text, const std::string& where) {
  std::size_t digits = 0;
  double number = -1;
  try {
    number = std::stod(text, &digits);
  } catch (const std::exception&) {
    digits = 0;
  }
  const std::string unit = to_lower(trim(std::string_view(text).substr(digits)));
  const std::pair<const char*, double> units[] = {
      {"", 1},      {"b", 1},        {"kb", 1e3},        {"mb", 1e6},           {"gb", 1e9},
      {"tb", 1e12}, {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0}};
  for (const auto& [name, factor] : units)
    if (digits > 0 && unit == name && std::isfinite(number) && number * factor >= 1 && number * factor < 1e18)
      return static_cast<std::int64_t>(number * factor);
  throw Error("bad_size", where, "\"" + text + "\" is not a size", "write it like 5GB, 500MB or 2GiB");
}

Exported export_huggingface(FileLayer& files, const std::filesystem::path& source, const std::filesystem::path& target,
                            const ExportOptions& options) {
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(target, ignored)))
    throw Error("exists", "", "is there already", "name a folder that does not exist, or remove this one")
        .in_file(target.string());
  const Checkpoint checkpoint = Checkpoint::open(resolve(source));

  std::vector<std::vector<TensorToWrite>> shards(1);
  std::int64_t shard_bytes = 0, total_bytes = 0;
  Exported exported;
  for (const FlatUnit& unit : checkpoint.units())
    for (const FlatParameter& parameter : unit.parameters) {
      TensorToWrite tensor = tensor_from(checkpoint, parameter, Kind::kParameters, parameter.name, options.storage);
      const std::int64_t bytes = bytes_to_write(tensor);
      if (shard_bytes > 0 && bytes > options.max_shard_bytes - shard_bytes) {
        shards.emplace_back();
        shard_bytes = 0;
      }
      shard_bytes += bytes;
      total_bytes += bytes;
      ++exported.tensors;
      shards.back().push_back(std::move(tensor));
    }

  const std::filesystem::path clean = target.has_filename() ? target : target.parent_path();
  const std::filesystem::path unfinished = clean.string() + fmt::format(".tmp-{}", ::getpid());
  files.remove_all(unfinished);
  files.make_folder(unfinished);
  const auto note = [&](const std::string& name, std::int64_t bytes) {
    exported.files.push_back(name);
    exported.bytes += bytes;
  };
  try {
    OrderedJson weight_map = OrderedJson::object();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string name = shards.size() == 1
                                   ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      note(name, write_safetensors(files, unfinished / name, shards[i]).bytes);
      for (const TensorToWrite& tensor : shards[i]) weight_map[tensor.name] = name;
    }
    const auto text_file = [&](const std::string& name, const std::string& text) {
      write_file(files, unfinished / name, text);
      note(name, static_cast<std::int64_t>(text.size()));
    };
    if (shards.size() > 1)
      text_file("model.safetensors.index.json",
                OrderedJson{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}}.dump(2) + "\n");
    if (options.states) {
      std::vector<TensorToWrite> states;
      for (const FlatUnit& unit : checkpoint.units())
        for (const FlatParameter& parameter : unit.parameters)
          if (unit.states)
            for (const Kind kind : {Kind::kExpAvg, Kind::kExpAvgSq})
              states.push_back(tensor_from(checkpoint, parameter, kind,
                                           fmt::format("{}.{}", parameter.name, name_of(kind)), Storage::kF32));
      states.push_back({"step", Storage::kI64, {}, [&](std::int64_t, std::span<std::byte> out) {
                          const std::int64_t step = checkpoint.step();
                          std::memcpy(out.data(), &step, 8);
                        }});
      note("states.safetensors", write_safetensors(files, unfinished / "states.safetensors", states).bytes);
    }
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint.model_folder())) {
      const std::string name = entry.path().filename().string();
      text_file(name, name == "config.json" ? config_with(entry.path(), options.storage) : read_file(entry.path()));
    }
    files.sync_folder(unfinished);
    files.rename(unfinished, clean);
    const std::filesystem::path parent = clean.parent_path();
    files.sync_folder(parent.empty() ? "." : parent);
  } catch (...) {
    std::filesystem::remove_all(unfinished, ignored);
    throw;
  }
  return exported;
}

}  // namespace shardfit::checkpoint
