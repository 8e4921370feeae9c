#include "selector/hardware/device.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>

#include "embedded/hardware_json.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"

namespace shardfit::hardware {
namespace {

Device read_device(const Json& object, const std::string& where) {
  ObjectReader r(object, where);
  Device d;
  d.key = r.required_string("key");
  d.name = r.string("name").value_or(d.key);
  d.aliases = r.strings("aliases").value_or(std::vector<std::string>{});
  d.slurm_types = r.strings("slurm_types").value_or(std::vector<std::string>{});
  d.memory_mib = r.number("memory_mib", 1);
  d.memory_bandwidth_gbs = r.number("memory_bandwidth_gbs", 0);
  d.bf16_tflops_dense = r.number("bf16_tflops_dense", 0);
  d.fp16_tflops_dense = r.number("fp16_tflops_dense", 0);
  d.fp8_tflops_dense = r.number("fp8_tflops_dense", 0);
  d.tf32_tflops = r.number("tf32_tflops", 0);
  d.fp32_tflops = r.number("fp32_tflops", 0);
  d.achievable_bf16_tflops = r.number("achievable_bf16_tflops", 0);
  if (const Json* pcie = r.get("pcie")) {
    ObjectReader p(*pcie, r.at("pcie"));
    d.pcie_gen = static_cast<int>(p.integer("gen", 1, 16).value_or(0));
    d.pcie_lanes = static_cast<int>(p.integer("lanes", 1, 64).value_or(0));
    d.pcie_gbs_measured = p.number("gbs_measured", 0);
  }
  d.nvlink_gbs_one_way = r.number("nvlink_gbs_one_way", 0);
  d.c2c_gbs_one_way = r.number("c2c_gbs_one_way", 0);
  d.tdp_w = r.number("tdp_w", 0);
  d.compute_capability = r.string("compute_capability").value_or("");
  d.source = r.string("source").value_or("");
  return d;
}

std::vector<Device> read_table() {
  std::vector<Device> table;
  const Json json = parse_json(embedded::hardware_json(), "hardware.json");
  table.reserve(json.size() + 1);
  for (std::size_t i = 0; i < json.size(); ++i) table.push_back(read_device(json[i], fmt::format("/{}", i)));
  Device cpu;
  cpu.key = "cpu";
  cpu.name = "CPU";
  cpu.source = "memory from the offer or the plan, rates from shardfit calibrate";
  cpu.is_cpu = true;
  table.push_back(std::move(cpu));
  return table;
}

// Upper and lower case, and '-', '_' and ' ', are one and the same: "A100-SXM4-80GB" = "a100 sxm4 80gb".
std::string folded(std::string_view name) {
  std::string text = to_lower(trim(name));
  for (char& c : text)
    if (c == '-' || c == ' ') c = '_';
  return text;
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& n) { return folded(n) == name; });
}

// Every device that `name` may mean: a key or alias is exact and wins over Slurm types, which several devices may
// share.
std::vector<const Device*> matches(std::string_view spoken) {
  const std::string name = folded(spoken);
  std::vector<const Device*> found;
  if (name.empty()) return found;
  for (const Device& d : devices())
    if (folded(d.key) == name) return {&d};
  for (const Device& d : devices())
    if (folded(d.name) == name || holds(d.aliases, name)) found.push_back(&d);
  if (!found.empty()) return found;
  for (const Device& d : devices())
    if (holds(d.slurm_types, name)) found.push_back(&d);
  return found;
}

}  // namespace

double Device::compute_capability_number() const {
  double value = 0;
  std::from_chars(compute_capability.data(), compute_capability.data() + compute_capability.size(), value);
  return value;
}

const std::vector<Device>& devices() {
  static const std::vector<Device> table = read_table();
  return table;
}

const Device* try_find_device(std::string_view name) {
  const auto found = matches(name);
  return found.size() == 1 ? found.front() : nullptr;
}

const Device& find_device(std::string_view name, const std::string& where) {
  const auto found = matches(name);
  if (found.size() == 1) return *found.front();
  if (found.size() > 1) {
    std::vector<std::string> candidates;
    for (const Device* d : found) candidates.push_back(d->key);
    throw Error("ambiguous_gpu", where, fmt::format("the GPU name \"{}\" may mean {}", name, join(candidates, ", ")),
                "name one of these");
  }
  std::vector<std::string> known, keys;
  for (const Device& d : devices()) {
    keys.push_back(d.key);
    known.push_back(d.key);
    known.insert(known.end(), d.aliases.begin(), d.aliases.end());
    known.insert(known.end(), d.slurm_types.begin(), d.slurm_types.end());
  }
  if (const auto near = nearest(name, known)) {
    std::vector<std::string> meant;  // a name that several devices share is no remedy
    for (const Device* d : matches(*near)) meant.push_back(d->key);
    throw Error("unknown_gpu", where, fmt::format("unknown GPU \"{}\"", name),
                meant.size() == 1 ? fmt::format("did you mean \"{}\"?", *near)
                                  : "did you mean one of " + join(meant, ", ") + "?");
  }
  throw Error("unknown_gpu", where, fmt::format("unknown GPU \"{}\"", name), "known ones: " + join(keys, ", "));
}

}  // namespace shardfit::hardware
