// The optimizer step: on the GPU by memory traffic, on the host by what ranks and software reach there, on NVMe by the
// drives.
#pragma once
#include "pricing/offers.hpp"
#include "selector/job/plan.hpp"
#include "selector/time/device_rates.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

// Fills the optimizer's members of `work` from the job.
void set_optimizer(const job::Job& job, Work& work);

// Seconds on the GPU for `local` parameters of one rank, clipping included.
double gpu_optimizer_seconds(const Work& work, double local, const DeviceRates& rates);

// Seconds of a serial update on the host of `node_parameters` parameters by `ranks` ranks.
// cost.md 2.4: R = in-situ rate; it is bounded by ranks and software first, by the memory of the host on desktops.
double cpu_optimizer_seconds(const Work& work, double node_parameters, double ranks, bool cores_bound, double ddr_gbs,
                             const pricing::Host* host);

// GB/s of the node's memory: as the host states it, else usual for servers (desktops) of that generation.
double ddr_gbs_of(const pricing::Host* host, const hardware::Device& device, Generation generation);

struct Drives {
  double read_gbs = 5, write_gbs = 4.5;
};
Drives drives_of(const pricing::Host* host);

// Seconds to read and write the fp32 states of `node_parameters` parameters: 16 B in, 14 B out each.
double nvme_optimizer_seconds(double node_parameters, double read_gbs, double write_gbs);

}  // namespace shardfit::timing
