// How a model's parameters lie in flat fp32 buffers, a unit each, and which slice of them a rank owns.
//
// A unit (embedding root, one transformer block, head root, or whatever the schedule gathers at once) is one flat
// buffer: its parameters one after another, row-major, without gaps, in the order of model::all_parameters. The buffer
// is padded with zeros to a multiple of the ranks it is sharded over; rank r owns the r-th of equally long slices.
// Parameters that are trained and those that are frozen lie in different units.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::checkpoint {

struct FlatParameter {
  std::string name;  // Hugging Face name
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // first element in the unit's buffer
  std::int64_t elements() const;
};

struct FlatUnit {
  std::string name;    // unique: "embedding", "block.0", "head", ...
  bool states = true;  // has exp_avg and exp_avg_sq (false: frozen)
  std::vector<FlatParameter> parameters;
  std::int64_t elements = 0;  // without padding

  void add(std::string parameter, std::vector<std::int64_t> shape);  // after the last one
  std::int64_t padded(std::int64_t ranks) const { return slice(ranks) * ranks; }
  std::int64_t slice(std::int64_t ranks) const {
    return (elements + ranks - 1) / ranks;
  }  // elements a rank owns, padding included
};

enum class Kind { kParameters, kExpAvg, kExpAvgSq };
std::string_view name_of(Kind kind);  // "parameters", "exp_avg", "exp_avg_sq"

}  // namespace shardfit::checkpoint
