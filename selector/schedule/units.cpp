#include "selector/schedule/units.hpp"

#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/model/model.hpp"

namespace shardfit::schedule {
const Slice* Unit::find(const std::string& full_name) const {
  for (const auto& slice : slices)
    if (slice.name == full_name) return &slice;
  return nullptr;
}

std::vector<Unit> build_units(const model::Model& model, std::int64_t ranks) {
  if (ranks < 1) throw Error("out_of_range", "/plan/sharding/shard_degree", fmt::format("{} ranks; at least 1", ranks));
  const auto blocks = model.block_count();
  std::vector<Unit> units(static_cast<std::size_t>(blocks + 1));
  units[0].name = "root";
  for (std::int64_t i = 0; i < blocks; ++i) {
    auto& unit = units[static_cast<std::size_t>(i + 1)];
    unit.name = fmt::format("block {}", i);
    unit.block = static_cast<int>(i);
  }
  for (const auto& parameter : model::all_parameters(model)) {
    const bool root = parameter.unit < 0 || parameter.unit >= blocks;
    auto& unit = units[root ? 0 : static_cast<std::size_t>(parameter.unit + 1)];
    Slice slice{parameter.name, parameter.shape, unit.elements, 1, false};
    for (auto extent : parameter.shape) slice.elements *= extent;
    slice.decays = parameter.shape.size() >= 2;
    unit.elements += slice.elements;
    unit.slices.push_back(std::move(slice));
  }
  for (auto& unit : units) {
    unit.shard_elements = (unit.elements + ranks - 1) / ranks;
    unit.elements = unit.shard_elements * ranks;
  }
  return units;
}

}  // namespace shardfit::schedule
