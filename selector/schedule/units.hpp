// How the parameters lie in memory: one flat buffer a unit, cut into equal shards.
//
// A unit is what is gathered and reduced in one collective: one transformer block, or the root unit (embeddings, final
// norm, output projection). Inside a unit parameters follow one another in the order of the model, without gaps; the
// unit is padded to a multiple of the ranks, and rank r owns the r-th equal part. runtime/checkpoint/layout.hpp cuts
// its files the same way.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardfit::model {
struct Model;
}

namespace shardfit::schedule {

struct Slice {
  std::string name;  // full Hugging Face name
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // elements from the unit's start
  std::int64_t elements = 0;
  bool decays = false;  // weight decay: matrices and embeddings only
};

struct Unit {
  std::string name;  // "root", "block 0", ...
  int block = -1;    // number of the block, -1 for the root unit
  std::vector<Slice> slices;
  std::int64_t elements = 0;  // padded
  std::int64_t shard_elements =
      0;  // elements / ranks: what a rank owns (stage 3) or answers for in a checkpoint (stage 0)
  const Slice* find(const std::string& full_name) const;
};

// units[0] is the root unit, units[1 + i] block i; `ranks`: data-parallel ranks.
std::vector<Unit> build_units(const model::Model& model, std::int64_t ranks);

}  // namespace shardfit::schedule
