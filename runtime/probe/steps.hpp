// Whole steps of small models through the engine, timed event by event: what single kernels do not show (caches between
// kernels, waiting for the other ranks, the engine's own work).
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "runtime/comm/collective.hpp"
#include "runtime/kernels/kernels.hpp"

namespace shardfit::probe {

// One object a model: {"config": Hugging Face's, "sequence", "micro_batch", "stage", "seconds": {"compute",
// "communication", "update"}}, means over the ranks. All ranks call it together; ranks shard at stage 3 where there are
// several.
nlohmann::ordered_json measure_steps(comm::Collective& collective, int threads, kernels::Type type, bool quick);

}  // namespace shardfit::probe
