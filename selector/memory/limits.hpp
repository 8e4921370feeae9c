// Keeps every number of an estimate well inside 64 bits.
#pragma once
#include "selector/memory/setup.hpp"

namespace shardfit::memory {

// Throws Error{out_of_range} where all tensors of a step together, each counted generously, pass 2^60 bytes (an exbibyte): no machine
// runs that, and sums of such numbers would overflow.
void check_sizes(const Setup& setup);

}  // namespace shardfit::memory
