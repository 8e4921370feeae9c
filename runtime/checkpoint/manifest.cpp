#include "runtime/checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <set>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "runtime/checkpoint/xxh64.hpp"

namespace shardfit::checkpoint {
namespace {

constexpr const char* kFormat = "shardfit checkpoint";
constexpr int kVersion = 1;
constexpr std::int64_t kMost = std::int64_t{1} << 60;
constexpr const char* kRemedy = "resume from an older checkpoint";

std::string checksum(const OrderedJson& json) {
  Xxh64 hash;
  const std::string text = json.dump();
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

OrderedJson to_json(const FlatUnit& unit) {
  OrderedJson parameters = OrderedJson::array();
  for (const FlatParameter& p : unit.parameters)
    parameters.push_back({{"name", p.name}, {"shape", p.shape}, {"offset", p.offset}});
  return {
      {"name", unit.name}, {"states", unit.states}, {"elements", unit.elements}, {"parameters", std::move(parameters)}};
}

// Throws std::string: what is wrong.
void require(bool holds, const std::string& what) {
  if (!holds) throw what;
}

FlatUnit unit_of(const OrderedJson& json) {
  FlatUnit unit;
  unit.name = json.at("name").get<std::string>();
  unit.states = json.at("states").get<bool>();
  for (const auto& p : json.at("parameters")) {
    auto shape = p.at("shape").get<std::vector<std::int64_t>>();
    std::int64_t elements = 1;
    for (const std::int64_t d : shape)
      require(d >= 0 && !__builtin_mul_overflow(elements, d, &elements) && elements < kMost, "a shape is impossible");
    require(p.at("offset").get<std::int64_t>() == unit.elements, "unit " + unit.name + " has a gap");
    unit.add(p.at("name").get<std::string>(), std::move(shape));
    require(unit.elements < kMost, "unit " + unit.name + " is too large");
  }
  require(json.at("elements").get<std::int64_t>() == unit.elements,
          "unit " + unit.name + " has another size than its parameters");
  return unit;
}

Manifest manifest_of(const OrderedJson& json) {
  require(json.at("format") == kFormat, "is not a checkpoint of shardfit");
  require(json.at("version") == kVersion,
          "has the version " + json.at("version").dump() + "; this program reads " + std::to_string(kVersion));
  Manifest m;
  m.step = json.at("step").get<std::int64_t>();
  m.ranks = json.at("ranks").get<std::int64_t>();
  m.sequence = json.at("sequence").get<std::int64_t>();
  require(m.step >= 0 && m.ranks >= 1 && m.ranks <= 1'000'000, "step or ranks is impossible");
  std::set<std::string> names;
  for (const auto& unit : json.at("units")) {
    m.units.push_back(unit_of(unit));
    for (const FlatParameter& p : m.units.back().parameters)
      require(names.insert(p.name).second, p.name + " is there twice");
  }
  for (const auto& pair : json.at("tied"))
    m.tied.emplace_back(pair.at(0).get<std::string>(), pair.at(1).get<std::string>());
  for (const auto& file : json.at("files")) {
    m.files.push_back({file.at("name").get<std::string>(), file.at("bytes").get<std::int64_t>(),
                       file.at("xxh64").get<std::string>()});
    const std::filesystem::path path = m.files.back().name;
    require(path.is_relative() && path.lexically_normal() == path && path.begin()->string() != ".." &&
                !m.files.back().name.empty(),
            "a file's name leaves the folder");
  }
  m.training_json = json.at("training").dump();
  m.job_json = json.at("job").dump();
  m.plan_json = json.at("plan").dump();
  return m;
}

}  // namespace

std::string rank_file(std::int64_t rank, std::int64_t ranks) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, ranks);
}

std::string to_text(const Manifest& m) {
  OrderedJson json{
      {"format", kFormat}, {"version", kVersion}, {"step", m.step}, {"ranks", m.ranks}, {"sequence", m.sequence}};
  json["training"] = OrderedJson::parse(m.training_json);
  json["job"] = OrderedJson::parse(m.job_json);
  json["plan"] = OrderedJson::parse(m.plan_json);
  json["units"] = OrderedJson::array();
  for (const FlatUnit& unit : m.units) json["units"].push_back(to_json(unit));
  json["tied"] = OrderedJson::array();
  for (const auto& [alias, owner] : m.tied) json["tied"].push_back(OrderedJson::array({alias, owner}));
  json["files"] = OrderedJson::array();
  for (const ManifestFile& file : m.files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", file.xxh64}});
  json["xxh64"] = checksum(json);  // of everything above, as compact JSON
  return json.dump(1) + "\n";
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "manifest.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw Error("checkpoint_incomplete", "",
                std::filesystem::exists(folder, ignored) ? "has no manifest.json: it is not a complete checkpoint"
                                                         : "there is no such folder",
                kRemedy)
        .in_file(folder.string());
  const auto corrupt = [&](const std::string& what) {
    return Error("checkpoint_corrupt", "", what, kRemedy, kExitFailed).in_file(file.string());
  };
  OrderedJson json = OrderedJson::parse(read_file(file), nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("xxh64"))
    throw corrupt("cannot be read as a manifest");
  const OrderedJson stated = json["xxh64"];
  json.erase("xxh64");
  if (stated != checksum(json)) throw corrupt("does not match its own checksum");
  try {
    return manifest_of(json);
  } catch (const std::string& what) {
    throw corrupt(what);
  } catch (const OrderedJson::exception& error) {
    throw corrupt(std::string("cannot be read as a manifest: ") + error.what());
  }
}

Manifest read_complete(const std::filesystem::path& folder) {
  Manifest manifest = read_manifest(folder);
  for (const ManifestFile& file : manifest.files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(folder / file.name, error);
    if (error)
      throw Error("checkpoint_corrupt", "", "is missing", kRemedy, kExitFailed).in_file((folder / file.name).string());
    if (static_cast<std::int64_t>(size) != file.bytes)
      throw Error("checkpoint_corrupt", "", fmt::format("has {} bytes where manifest.json says {}", size, file.bytes),
                  kRemedy, kExitFailed)
          .in_file((folder / file.name).string());
  }
  return manifest;
}

}  // namespace shardfit::checkpoint
