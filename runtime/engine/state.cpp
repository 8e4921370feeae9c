// The engine's parameters and states: filled at the start, given out for checkpoints.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/engine/draw.hpp"
#include "runtime/engine/engine.hpp"

namespace shardfit::engine {

using job::DType;
using schedule::width_of;

std::vector<checkpoint::FlatUnit> Engine::flat_units() const {
  std::vector<checkpoint::FlatUnit> units;
  for (const auto& unit : step_.units) {
    checkpoint::FlatUnit flat;
    flat.name = unit.name;
    std::replace(flat.name.begin(), flat.name.end(), ' ', '.');
    for (const auto& slice : unit.slices) flat.parameters.push_back({slice.name, slice.shape, slice.offset});
    for (const auto& slice : unit.slices) flat.elements += slice.elements;
    units.push_back(std::move(flat));
  }
  return units;
}

// `read` delivers what this rank holds of a unit, as fp32.
void Engine::fill(const std::function<void(const checkpoint::FlatUnit&, std::span<float>)>& read, const char* buffer,
                  DType type) {
  const auto units = flat_units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto elements = step_.held_elements(step_.units[u]);
    auto* to = held(buffer, static_cast<int>(u), type);
    if (type == DType::kFp32 && kind_ == device::Kind::kCpu) {
      read(units[u], {reinterpret_cast<float*>(to), static_cast<std::size_t>(elements)});
    } else {
      converted_.resize(static_cast<std::size_t>(elements));
      read(units[u], converted_);
      bring(converted_.data(), to, type, elements);
    }
  }
  converted_ = {};
}

void Engine::load(const checkpoint::HuggingFaceWeights& weights) {
  weights.check(flat_units());
  const int rank = step_.sharded ? collective_.rank() : 0;
  const auto ranks = step_.sharded ? step_.ranks : 1;
  fill([&](const checkpoint::FlatUnit& unit, std::span<float> out) { weights.read_slice(unit, rank, ranks, out); },
       "parameters", step_.sizes.precision.parameters);
  for (std::size_t u = 0; u < step_.units.size(); ++u) refresh_compute_copy(static_cast<int>(u));
}

void Engine::draw(double range) {
  std::size_t index = 0;
  fill(
      [&](const checkpoint::FlatUnit&, std::span<float> out) {
        const auto& unit = step_.units[index++];
        const auto begin = step_.sharded ? collective_.rank() * unit.shard_elements : 0;
        std::fill(out.begin(), out.end(), 0.0f);
        for (const auto& slice : unit.slices) {
          const auto from = std::max(begin, slice.offset),
                     to = std::min(begin + static_cast<std::int64_t>(out.size()), slice.offset + slice.elements);
          if (from < to)
            draw_parameter(seed_, slice, range, step_.sizes.geometry.layers, from - slice.offset,
                           out.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from)));
        }
      },
      "parameters", step_.sizes.precision.parameters);
  for (std::size_t u = 0; u < step_.units.size(); ++u) refresh_compute_copy(static_cast<int>(u));
}

std::vector<std::string> Engine::restore(const checkpoint::Checkpoint& saved, bool states) {
  const int rank = step_.sharded ? collective_.rank() : 0;
  const auto ranks = step_.sharded ? step_.ranks : 1;
  const auto& precision = step_.sizes.precision;
  std::vector<std::string> without;
  auto read = [&](checkpoint::Kind kind, const char* buffer, DType type, std::vector<std::string>* names) {
    fill([&](const checkpoint::FlatUnit& unit,
             std::span<float> out) { saved.read_slice(unit, kind, rank, ranks, out, names); },
         buffer, type);
  };
  read(checkpoint::Kind::kParameters, "parameters", precision.parameters, nullptr);
  if (states) {
    read(checkpoint::Kind::kExpAvg, "exp_avg", precision.states, &without);
    read(checkpoint::Kind::kExpAvgSq, "exp_avg_sq", precision.states, nullptr);
  }
  for (std::size_t u = 0; u < step_.units.size(); ++u) refresh_compute_copy(static_cast<int>(u));
  return without;
}

std::span<const float> Engine::slice(std::size_t unit, checkpoint::Kind kind) {
  const auto& precision = step_.sizes.precision;
  const char* buffer = kind == checkpoint::Kind::kParameters ? "parameters"
                       : kind == checkpoint::Kind::kExpAvg   ? "exp_avg"
                                                             : "exp_avg_sq";
  const auto type = kind == checkpoint::Kind::kParameters ? precision.parameters : precision.states;
  const auto elements = step_.units[unit].shard_elements;
  // Stage 0: every rank has all, and answers for its part.
  const auto first = step_.sharded ? 0 : collective_.rank() * elements;
  const auto* from = held(buffer, static_cast<int>(unit), type) + first * width_of(type);
  if (type == DType::kFp32 && kind_ == device::Kind::kCpu)
    return {reinterpret_cast<const float*>(from), static_cast<std::size_t>(elements)};
  converted_.resize(static_cast<std::size_t>(elements));
  fetch(from, type, converted_.data(), elements);
  return converted_;
}

void Engine::fetch(const void* from, DType type, float* to, std::int64_t elements) const {
  if (type == DType::kFp32) {
    kernels_->copy_to_host(to, from, elements * width_of(type));
    return;
  }
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(elements));
  kernels_->copy_to_host(narrow.data(), from, elements * width_of(type));
  host_kernels_->cast(narrow.data(), kernels::Type::kBf16, to, kernels::Type::kFp32, elements);
}

void Engine::bring(const float* from, void* to, DType type, std::int64_t elements) const {
  if (type == DType::kFp32) {
    kernels_->copy_to_device(to, from, elements * width_of(type));
    return;
  }
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(elements));
  host_kernels_->cast(from, kernels::Type::kFp32, narrow.data(), kernels::Type::kBf16, elements);
  kernels_->copy_to_device(to, narrow.data(), elements * width_of(type));
}

std::uint64_t Engine::parameters_hash() const {
  const auto bytes = step_.held_elements() * width_of(step_.sizes.precision.parameters) / 4 * 4;
  std::uint64_t hash = 14695981039346656037ULL;
  std::vector<std::uint32_t> words(std::size_t{1} << 18);
  for (std::int64_t first = 0; first < bytes;) {
    const auto n = std::min<std::int64_t>(bytes - first, static_cast<std::int64_t>(words.size()) * 4);
    kernels_->copy_to_host(words.data(), region("parameters").bytes_at(first), n);
    for (std::int64_t i = 0; i < n / 4; ++i) hash = (hash ^ words[static_cast<std::size_t>(i)]) * 1099511628211ULL;
    first += n;
  }
  return hash;
}

std::vector<float> Engine::whole(const char* buffer, DType type, const std::string& parameter) {
  for (std::size_t u = 0; u < step_.units.size(); ++u) {
    const auto* slice = step_.units[u].find(parameter);
    if (!slice) continue;
    const auto held_elements = step_.held_elements(step_.units[u]);
    std::vector<float> mine(static_cast<std::size_t>(held_elements)), all(mine);
    fetch(held(buffer, static_cast<int>(u), type), type, mine.data(), held_elements);
    if (step_.sharded) {
      all.resize(static_cast<std::size_t>(step_.units[u].elements));
      collective_.exchange(mine.data(), all.data(), held_elements * static_cast<std::int64_t>(sizeof(float)));
    } else {
      all = mine;
    }
    return {all.begin() + slice->offset, all.begin() + slice->offset + slice->elements};
  }
  throw std::logic_error("no parameter " + parameter);
}

std::vector<float> Engine::gradient_of(const std::string& parameter) {
  return whole("gradients", step_.sizes.precision.gradients, parameter);
}
std::vector<float> Engine::parameter_of(const std::string& parameter) {
  return whole("parameters", step_.sizes.precision.parameters, parameter);
}

}  // namespace shardfit::engine
