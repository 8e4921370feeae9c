#include "runtime/train/trainer.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "runtime/device/meter.hpp"
#include "runtime/device/pool.hpp"
#include "runtime/train/connect.hpp"
#include "runtime/train/run.hpp"
#include "runtime/train/signals.hpp"
#ifdef SHARDFIT_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace shardfit::train {
namespace {

// Ranks of one host that may use the same processors share them; ranks bound to their own each use all of theirs.
void choose_threads(comm::World& world, comm::Collective& collective) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  int sharing = world.local_ranks();
  if (::sched_getaffinity(0, sizeof mine, &mine) == 0) {
    std::vector<cpu_set_t> all(static_cast<std::size_t>(collective.ranks()));
    collective.exchange(&mine, all.data(), sizeof mine);
    int equal = 0;
    for (const auto& one : all) equal += std::memcmp(&one, &mine, sizeof mine) == 0;
    sharing = std::min(sharing, equal);
  }
  at::set_num_threads(threads_for(sharing));
}

void print_error(int rank, int ranks, const std::string& message) {
  if (ranks > 1) std::fprintf(stderr, "shardfit-train: rank %d: %s\n", rank, message.c_str());
  else std::fprintf(stderr, "shardfit-train: %s\n", message.c_str());
  std::fflush(stderr);
}

}  // namespace

int train(const Options& options, const Environment& environment) {
  std::optional<comm::World> world;
  std::unique_ptr<comm::Collective> collective;
  std::unique_ptr<Run> run;
  int status = kExitFailed;
  std::string message;
  try {
    if (const char* fault = std::getenv("SHARDFIT_FAULT"); fault && *fault)
      throw Error("not_supported", "SHARDFIT_FAULT", "fault injection is not supported by this shardfit-train yet",
                  "unset it");
    const double timeout = comm::timeout_from_environment();
    const auto inputs = read_inputs(options, environment.ranks);
    install_stop_signals();
    const auto agreement = sha256_hex(job::to_json(inputs.job).dump() + "\n" + job::to_json(inputs.plan).dump());
    world.emplace(comm::WorldOptions{environment.rank, environment.ranks, environment.address, environment.port,
                                     agreement, timeout, environment.listening_socket});
    const bool gpu = inputs.plan.gpu != "cpu";
#ifdef SHARDFIT_WITH_CUDA
    if (gpu) c10::cuda::set_device(static_cast<c10::DeviceIndex>(world->local_rank()));
#endif
    collective = connect(*world, gpu);
    device::meter().add(collective->buffer_bytes());
    choose_threads(*world, *collective);
    run = std::make_unique<Run>(inputs, options, *world, *collective);
    status = run->execute();
    collective->barrier();  // no rank leaves while another still needs it
    run.reset();
    return status;
  } catch (const Error& error) {
    message = error.what();
    status = error.exit_status;
  } catch (const std::bad_alloc&) {
    message = "out of memory beside the planned buffers";
    status = device::kExitOutOfMemory;
  } catch (const std::exception& error) {
    message = error.what();
  }
  print_error(environment.rank, environment.ranks, message);
  if (world) world->announce_failure(message, status);
  if (run) run->fail(message, status);
  run.reset();
  collective.reset();
  return status;
}

}  // namespace shardfit::train
