#include "runtime/train/connect.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "regions/base/error.hpp"
#include "runtime/comm/shm.hpp"
#ifdef SHARDFIT_WITH_GLOO
#include "runtime/comm/gloo/gloo.hpp"
#endif
#ifdef SHARDFIT_WITH_CUDA
#include "runtime/comm/nccl/nccl.hpp"
#endif
#include "selector/schedule/step.hpp"

namespace shardfit::train {

std::unique_ptr<comm::Collective> connect(comm::World& world, [[maybe_unused]] bool gpu) {
  const char* variable = std::getenv("SHARDFIT_COMM");
  std::string wanted = variable ? variable : "";
  if (!wanted.empty() && wanted != "shm" && wanted != "gloo")
    throw Error("unknown_word", "SHARDFIT_COMM", fmt::format("\"{}\" is not known", wanted), "use \"shm\" or \"gloo\"");
  if (world.ranks() == 1) return comm::make_single();
#ifdef SHARDFIT_WITH_CUDA
  if (gpu) return comm::make_nccl(world, schedule::communication_bytes(world.ranks()));
#endif
  if (wanted.empty()) wanted = world.one_host() ? "shm" : "gloo";
  if (wanted == "shm") {
    if (!world.one_host())
      throw Error("not_supported", "SHARDFIT_COMM", "the ranks are on several hosts: they share no memory",
                  "leave SHARDFIT_COMM unset or use \"gloo\"");
    return comm::make_shm(world, schedule::kCommStageBytes);
  }
#ifdef SHARDFIT_WITH_GLOO
  return comm::make_gloo(world, schedule::communication_bytes(world.ranks()));
#else
  throw Error("not_supported", "SHARDFIT_COMM", "this shardfit-train was built without Gloo",
              "install libgloo-dev and build again");
#endif
}

}  // namespace shardfit::train
