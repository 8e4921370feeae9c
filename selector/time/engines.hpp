// What frameworks differ in, as rows of data: how sharply they overlap, what launching a block costs, what stays
// exposed.
#pragma once
#include <string_view>

#include "selector/time/device_rates.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

struct EngineRow {
  Engine engine;
  // T = (C^p + X^p)^(1/p) of compute C and communication X, forward and backward apart. 1 = one after the other.
  double overlap;
  double launch_eager, launch_fused;  // CPU seconds to launch one block's forward; a floor under its GPU time
  double sharded_launch;              // added under stage 3: hooks, gathers, stream waits
  double tensor_parallel_exposed;     // share of the tensor-parallel all-reduces that compute does not hide
  double step_exposed;                // share of the gradients' reduction after backward that stays visible at least
};

const EngineRow& engine_row(Engine engine);
std::string_view engine_name(Engine engine);

// What is left of an engine on a generation once the structure has its say: a factor on block and head time, 1 where
// nothing was measured. `measured` tells the two apart.
struct Leftover {
  double factor = 1;
  bool measured = false;
};
Leftover leftover(const Work& work, Generation generation);

// Boxes without NVLink overlap little whatever the engine: copies stage through the host.
inline constexpr double kPcieOverlap = 1.19;

}  // namespace shardfit::timing
