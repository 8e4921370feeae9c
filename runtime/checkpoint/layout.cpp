#include "runtime/checkpoint/layout.hpp"

namespace shardfit::checkpoint {

std::int64_t FlatParameter::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

void FlatUnit::add(std::string parameter, std::vector<std::int64_t> parameter_shape) {
  parameters.push_back({std::move(parameter), std::move(parameter_shape), elements});
  elements += parameters.back().elements();
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kParameters: return "parameters";
    case Kind::kExpAvg: return "exp_avg";
    case Kind::kExpAvgSq: return "exp_avg_sq";
  }
  return "";
}

}  // namespace shardfit::checkpoint
