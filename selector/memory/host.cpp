#include "selector/memory/host.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "pricing/offers.hpp"
#include "regions/base/text.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::memory {
namespace {

constexpr double kProcess = 2.5 * 1073741824.0;   // interpreter, torch and CUDA libraries of one rank, resident
constexpr double kOwnProcess = 0.6 * 1073741824.0;

}  // namespace

HostBytes host_bytes(const Setup& s, const ModelSizes& sizes) {
  HostBytes h;
  const std::int64_t ranks = std::max<std::int64_t>(1, s.plan.gpus_per_node);
  double rest = 0, trained = 0, shard_trained = 0, whole_trained = 0;
  double checkpoints = 0;
  auto add = [&](const UnitSizes& u) {
    rest += static_cast<double>(s.stage == 3 ? u.rest_shard_bytes : u.rest_bytes);
    trained += static_cast<double>(u.trained);
    shard_trained += static_cast<double>(s.stage >= 1 ? u.trained_shard : u.trained);
    whole_trained += static_cast<double>(u.trained);
  };
  for (auto k : sizes.order) add(sizes.blocks[static_cast<std::size_t>(k)]);
  add(sizes.embedding);
  add(sizes.head);
  if (s.pp > 1) {
    rest /= static_cast<double>(s.pp);
    shard_trained /= static_cast<double>(s.pp);
  }
  if (s.offload_activations) checkpoints = static_cast<double>(sizes.order.size()) * static_cast<double>(s.tokens * s.model.hidden * s.residual_bytes);
  const auto& o = s.plan.offload;
  const bool pin = o.pin.value_or(true);
  double host = 0, pinned = 0, nvme = 0;          // of one rank
  auto place = [&](job::Place where, double bytes, bool pinnable) {
    if (where == job::Place::kCpu) {
      host += bytes;
      if (pin && pinnable) pinned += bytes;
    } else if (where == job::Place::kNvme) {
      nvme += bytes;
    }
  };
  const double gb = s.adapters.any ? s.adapters.bytes : s.gradient_bytes;
  // optimizer states and the fp32 master beside them; a fraction may stay on the device
  const double fraction = std::clamp(o.optimizer_fraction, 0.0, 1.0);
  const double master = s.master_bytes;
  place(o.optimizer, shard_trained * (s.states * s.state_bytes + master) * fraction, true);
  if (o.optimizer != job::Place::kNone) {
    // gradients come to the host in the update's format
    const double arriving = shard_trained * (s.engine == Engine::kZero ? 4 : gb) * fraction;
    host += arriving;
    if (pin) pinned += arriving;
  } else {
    place(o.gradients, shard_trained * gb, true);
  }
  place(o.parameters, rest, true);
  if (o.parameters == job::Place::kNvme) {        // staging: buffer_count x buffer_size (deepspeed offload_config.py)
    const double staging = static_cast<double>(o.buffers.value_or(5)) * static_cast<double>(o.buffer_bytes.value_or(200000000));
    host += staging;
    pinned += staging;
  }
  if (o.optimizer == job::Place::kNvme) {
    const double group = std::min(s.sub_group > 0 ? s.sub_group : 1e9, shard_trained);
    const double staging = static_cast<double>(o.buffers.value_or(4)) * group * 4;
    host += staging;
    pinned += staging;
  }
  place(o.activations, checkpoints, true);
  if (s.job.optimizer.paged) host += 0;           // managed memory lies on the device until it is pressed out
  host += s.engine == Engine::kOwn ? kOwnProcess : kProcess;
  h.total = static_cast<std::int64_t>(host * static_cast<double>(ranks));
  h.pinned = static_cast<std::int64_t>(pinned * static_cast<double>(ranks));
  h.nvme = static_cast<std::int64_t>(nvme * static_cast<double>(ranks));
  return h;
}

void judge(const Request& request, const Setup& s, const Overheads& over, Result& r) {
  const auto& m = r.memory;
  if (r.capacity_bytes <= 0) {
    r.fits = "unsure";
    r.why = "the device's memory is not known: state device_memory_gib";
    return;
  }
  const auto least = static_cast<double>(m.allocated_peak + over.total());
  if (least > r.capacity_bytes) {
    r.fits = "no";
    r.why = fmt::format("the device gives {}, the peak needs {} in the {} phase", format_gib(r.capacity_bytes), format_gib(least), m.phase);
  } else if (static_cast<double>(m.device_peak_high) > r.capacity_bytes) {
    r.fits = "unsure";
    r.why = fmt::format("the device gives {}, the peak lies between {} and {}", format_gib(r.capacity_bytes), format_gib(least), format_gib(static_cast<double>(m.device_peak_high)));
  } else {
    r.fits = "yes";
  }
  const bool offloads = s.plan.offload.any();
  const bool known = request.host && request.host->ram_gib;
  if (known) {
    const double ram = *request.host->ram_gib * 1073741824.0;
    if (static_cast<double>(m.host) > ram * 0.97) {
      r.fits = "no";
      r.why = fmt::format("the node has {} of memory, the job needs {} on the host", format_gib(ram), format_gib(static_cast<double>(m.host)));
    }
  } else if (offloads && r.fits == "yes") {
    r.fits = "unsure";
    r.why = fmt::format("the node's memory is not known and {} are offloaded to it: state host.ram_gib", format_gib(static_cast<double>(m.host)));
  }
}

}  // namespace shardfit::memory
