#include "selector/memory/host.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "pricing/offers.hpp"
#include "regions/base/text.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/host_terms.hpp"

namespace shardfit::memory {
namespace {

using Where = HostTerm::Where;

// Weight and gradient of the widest layer, which ZeRO-3 has on the device whole unless the model's code runs it in tiles
// (deepspeed/runtime/zero/tiling.py TiledLinear, memory-centric tiling), which no setting of job or plan tells.
double widest_layer_bytes(const Setup& s) {
  if (s.engine != Engine::kZero || s.stage < 3) return 0;
  double most = 0;
  for (const auto& block : s.model.blocks)
    for (const auto& p : block.parameters)
      if (p.kind == model::Parameter::Kind::kMatrix) most = std::max(most, static_cast<double>(p.elements()));
  return most * 2 * s.compute_bytes;
}

}  // namespace

HostBytes host_bytes(const Setup& s, const ModelSizes& sizes) {
  const std::vector<HostTerm> terms = host_terms(s, sizes);
  HostBytes h;
  for (const HostTerm& t : terms) {
    (t.where == Where::kNvme ? h.nvme : h.total) += t.bytes;
    if (t.where == Where::kPinned) h.pinned += t.bytes;
  }
  h.base = host_base_bytes(s);
  h.rounding = pinned_rounding_bytes(s, terms);
  return h;
}

void judge(const Request& request, const Setup& s, const HostBytes& host, Result& r) {
  const auto& m = r.memory;
  if (r.capacity_bytes <= 0) {
    r.fits = "unsure";
    r.why = "the device's memory is not known: state device_memory_gib";
    return;
  }
  if (r.needed_low > r.capacity_bytes) {
    r.fits = "no";
    r.why = fmt::format("the device gives {}, the peak needs {} in the {} phase", format_gib(r.capacity_bytes), format_gib(r.needed_low), m.phase);
    if (const double layer = widest_layer_bytes(s); layer > r.capacity_bytes / 2 && r.needed_low - layer <= r.capacity_bytes) {
      r.fits = "unsure";
      r.why += fmt::format("; weight and gradient of its widest layer are {} of that, which fits only if the model's code tiles that layer (deepspeed.zero.TiledLinear)", format_gib(layer));
    }
  } else if (r.needed_high > r.capacity_bytes) {
    r.fits = "unsure";
    r.why = fmt::format("the device gives {}, the peak lies between {} and {}", format_gib(r.capacity_bytes), format_gib(r.needed_low), format_gib(r.needed_high));
  } else {
    r.fits = "yes";
  }
  const bool offloads = s.plan.offload.any();
  const bool known = request.host && request.host->ram_gib;
  if (known) {
    const double ram = *request.host->ram_gib * 1073741824.0;
    const double least = static_cast<double>(host.total) + static_cast<double>(host.base), most = least + static_cast<double>(host.rounding);
    if (least > ram * 0.97) {
      r.fits = "no";
      r.why = fmt::format("the node has {} of memory, the job needs {} on the host", format_gib(ram), format_gib(least));
    } else if (most > ram * 0.97 && r.fits == "yes") {
      r.fits = "unsure";
      r.why = fmt::format("the node has {} of memory, the job needs {} to {} on the host (pinned memory is handed out in powers of two)", format_gib(ram), format_gib(least),
                          format_gib(most));
    }
    const auto& nvme = request.host->nvme;
    if (host.nvme > 0 && nvme && nvme->capacity_gb && static_cast<double>(host.nvme) > *nvme->capacity_gb * 1e9 && r.fits != "no") {
      r.fits = "no";
      r.why = fmt::format("the node has {:.0f} GB of NVMe, the job swaps {:.0f} GB to it", *nvme->capacity_gb, static_cast<double>(host.nvme) / 1e9);
    }
  } else if (offloads && r.fits == "yes") {
    r.fits = "unsure";
    r.why = fmt::format("the node's memory is not known and {} are offloaded to it: state host.ram_gib", format_gib(static_cast<double>(m.host)));
  }
}

}  // namespace shardfit::memory
