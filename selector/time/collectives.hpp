// Seconds of gathers, reductions, all-to-alls and point-to-point sends by the links of a node and the network between
// nodes.
#pragma once
#include "pricing/offers.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/plan.hpp"
#include "selector/time/device_rates.hpp"

namespace shardfit::timing {

struct Links {
  double gpu = 0;  // bytes/s one way and GPU inside a node, as collectives reach it in training
  double gpu_alltoall = 0;
  double node = 0;  // bytes/s one way and node, all NICs, datasheet
  double pcie = 0;  // bytes/s one way and GPU to the host, every GPU active
  double gpus_per_node = 1;
  double model_parallel = 1;  // tensor x context: what one data-parallel rank spans
  bool peer_to_peer = true;   // NVLink or the like; false: through PCIe and the host
  bool node_assumed = false, pcie_assumed = false;
};

Links links_of(const job::Plan& plan, const hardware::Device& device, const DeviceRates& rates,
               const pricing::Host* host, const pricing::Interconnect* interconnect);

// One all-gather (or reduce-scatter) of `bytes` in total over `ranks` ranks, `per_node` of them in a node (0 = as many
// as fit): max(S (N-1)/N / link, S (n-1)/n / node) + latency; cost.md 2.2.
double gather_seconds(const Links& links, double bytes, double ranks, double per_node = 0);

// One dispatch (or combine) of `bytes` of local tokens to `top_k` of the experts spread over `ranks` GPUs; a node
// receives a token once (DeepEP's deduplication).
double alltoall_seconds(const Links& links, double bytes, double ranks, double top_k);

// Latency of the rings of one micro-step from 16 ranks on, which nothing hides: 2.47 us x ranks x collectives.
double ring_seconds(double ranks, double collectives);

}  // namespace shardfit::timing
