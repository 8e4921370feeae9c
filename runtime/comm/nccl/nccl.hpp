// Collectives over NCCL, for ranks that compute on GPUs: one GPU a rank, buffers in its memory.
#pragma once
#include <cstdint>
#include <memory>

#include "runtime/comm/collective.hpp"

namespace shardfit::comm {

class World;

// Call on all ranks at once, after the rank's device has been chosen. Every wait polls for the deadline and for dead
// ranks and then aborts the communicator. `stage_bytes`: device memory for what is cast before it is reduced. Sums
// follow NCCL's order, not the ranks'.
std::unique_ptr<Collective> make_nccl(World& world, std::int64_t stage_bytes);

}  // namespace shardfit::comm
