// What each optimizer keeps of a tensor, and what its update allocates while it runs.
#pragma once
#include <cstdint>
#include <vector>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {

struct TrainedTensor {
  std::vector<std::int64_t> shape;     // before any sharding; empty = a vector of adapters
  std::int64_t kept = 0;               // elements that this rank updates
  double share = 1;                    // of the whole, that is
  bool embedding = false;
  bool hidden = false;                 // a matrix of a block: what Muon and GaLore take; embedding, head and vectors go by AdamW
};

// Elements of each state, in units of Setup::state_bytes.
void add_states(const Setup& setup, const TrainedTensor& t, std::vector<std::int64_t>& states);

// Bytes that the update of this one tensor allocates, where tensors are updated one after the other; 0 where the kernel needs none.
std::int64_t update_temporary(const Setup& setup, const TrainedTensor& t);

// Bytes an element of the list of copies that a foreach update makes of all tensors at once; 0 = none.
double foreach_copy(const Setup& setup);

}  // namespace shardfit::memory
