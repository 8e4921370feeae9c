// The road the ranks talk over. Processor ranks: shared memory on one host, Gloo otherwise, or what SHARDFIT_COMM names
// (shm | gloo). GPU ranks: NCCL.
#pragma once
#include <memory>

#include "runtime/comm/collective.hpp"
#include "runtime/comm/world.hpp"

namespace shardfit::train {

// Throws Error{unknown_word | not_supported}.
std::unique_ptr<comm::Collective> connect(comm::World& world, bool gpu = false);

}  // namespace shardfit::train
