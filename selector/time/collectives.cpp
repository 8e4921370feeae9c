#include "selector/time/collectives.hpp"

#include <algorithm>
#include <cmath>

namespace shardfit::timing {
namespace {

// Fitted on tests/truth/time_visible.jsonl: bus bandwidth beside a busy GPU, not nccl-tests' on an idle one (H100: 261
// of 450 GB/s, A100: 174 of 300). Calculon's systems have 0.65 for networks.
constexpr double kNvlinkShare = 0.5806, kNetworkShare = 0.6283, kPcieCollectiveShare = 0.4358;
constexpr double kAlltoallShare = 0.7197;       // of the collective rate above
constexpr double kAlltoallNetworkShare = 0.95;  // DeepEP README: 61-90 GB/s logical at EP 16-32 over 50 GB/s NICs
constexpr double kCollectiveSeconds = 35e-6, kNodeSeconds = 6.1e-6, kRingSeconds = 2.47e-6;
constexpr double kC2cBytes = 200e9;  // Grace: what copies reach of 450 GB/s

double default_node_gbs(Generation generation, double gpus_per_node) {
  // Big nodes come with one NIC a GPU (8 x 400 or 8 x 100 Gb/s); small boxes with one or two.
  if (gpus_per_node < 8) return 6;
  switch (generation) {
    case Generation::kHopper:
    case Generation::kBlackwell:
    case Generation::kCdna: return 400;
    case Generation::kAmpere: return 100;
    default: return 12.5;
  }
}

double pcie_gbs(int generation, double gen3, double gen4, double gen5) {
  return generation >= 5 ? gen5 : generation == 3 ? gen3 : gen4;
}

}  // namespace

Links links_of(const job::Plan& plan, const hardware::Device& device, const DeviceRates& rates,
               const pricing::Host* host, const pricing::Interconnect* interconnect) {
  Links links;
  links.gpus_per_node = static_cast<double>(plan.gpus_per_node);
  links.model_parallel = static_cast<double>(plan.tensor_parallel * plan.context_parallel);
  // 0 = not stated.
  const double host_pcie = host ? host->pcie_gbs.value_or(0) : 0,
               stated = interconnect ? interconnect->gpu_link_gbs.value_or(0) : 0,
               node = interconnect ? interconnect->node_gbs.value_or(0) : 0;

  const double nominal = device.nvlink_gbs_one_way.value_or(0);
  if (rates.nvlink_all) {
    links.gpu = nominal * kNvlinkShare;
  } else {
    links.gpu = (host_pcie > 0 ? host_pcie : pcie_gbs(device.pcie_gen, 12, 22, 45)) * kPcieCollectiveShare;
    links.peer_to_peer = false;
  }
  if (stated > 0) {
    // Above any PCIe it is a link of its own: a datasheet figure, or 0.9 of it where it was measured. Below, it is what
    // collectives reach.
    if (stated > 60) {
      links.gpu = nominal > 0 ? std::min(nominal * kNvlinkShare, stated * kNvlinkShare / 0.89) : stated * kNvlinkShare;
      links.peer_to_peer = true;
    } else {
      links.gpu = stated;
      links.peer_to_peer = stated >= 40;
    }
  }
  links.gpu *= 1e9;
  links.gpu_alltoall = links.gpu * kAlltoallShare;

  links.node_assumed = plan.nodes > 1 && node <= 0;
  links.node = (node > 0 ? node : default_node_gbs(rates.generation, links.gpus_per_node)) * 1e9;

  links.pcie_assumed = host_pcie <= 0;
  double pcie = host_pcie > 0 ? host_pcie : device.pcie_gbs_measured.value_or(pcie_gbs(device.pcie_gen, 12, 24, 50));
  // Boxes whose cards talk to each other slowly share their PCIe lanes.
  if (stated > 0 && stated < 60 && host_pcie <= 0) pcie = std::min(pcie, std::max(2 * stated, 3.0));
  links.pcie = rates.c2c && host_pcie <= 0 ? kC2cBytes : pcie * 1e9;
  return links;
}

double gather_seconds(const Links& links, double bytes, double ranks, double per_node) {
  if (ranks <= 1 || bytes <= 0) return 0;
  const double fit = std::max(std::floor(links.gpus_per_node / links.model_parallel), 1.0);
  const double group = std::min(ranks, per_node > 0 ? per_node : fit), nodes = std::max(ranks / group, 1.0);
  double seconds = bytes * (ranks - 1) / ranks / links.gpu;
  if (nodes > 1) {
    // A group that fills its nodes has all their NICs; a smaller one its part.
    const double share = group < links.gpus_per_node ? group / links.gpus_per_node : 1;
    seconds = std::max(seconds, bytes * (nodes - 1) / nodes / (links.node * kNetworkShare * share));
    seconds += kNodeSeconds * nodes;
  }
  return seconds + kCollectiveSeconds;
}

double alltoall_seconds(const Links& links, double bytes, double ranks, double top_k) {
  if (ranks <= 1) return 0;
  const auto copies = [&](double places) { return places * (1 - std::pow(1 - 1 / places, top_k)) * (1 - 1 / places); };
  double seconds = bytes * copies(ranks) / links.gpu_alltoall;
  const double nodes = ranks / links.gpus_per_node;
  // Above 2 TB/s a "node" is a rack with one NVLink domain (GB200 NVL72).
  if (nodes > 1 && links.node < 2000e9)
    seconds = std::max(seconds, bytes * copies(nodes) / (links.node / links.gpus_per_node * kAlltoallNetworkShare));
  return seconds;
}

double ring_seconds(double ranks, double collectives) { return ranks > 16 ? kRingSeconds * ranks * collectives : 0; }

}  // namespace shardfit::timing
