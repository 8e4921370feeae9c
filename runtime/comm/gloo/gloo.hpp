// Collectives over Gloo, as LibTorch carries it: ranks on several hosts, over TCP. GLOO_SOCKET_IFNAME names the network
// interface.
#pragma once
#include <cstdint>
#include <memory>

#include "runtime/comm/collective.hpp"

namespace shardfit::comm {

class World;

// Call on all ranks at once; `world` must outlive it. Staging and what LibTorch allocates while a collective runs stay
// within `buffer_bytes` together. Throws Error{rank_lost} where no connection comes about.
std::unique_ptr<Collective> make_gloo(World& world, std::int64_t buffer_bytes);

}  // namespace shardfit::comm
