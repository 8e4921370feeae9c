// One optimizer step on GPUs, part by part: compute, traffic of model and data parallelism, copies to the host, their
// overlap, the optimizer.
#pragma once
#include "pricing/offers.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/plan.hpp"
#include "selector/time/attention_kernels.hpp"
#include "selector/time/device_rates.hpp"
#include "selector/time/engines.hpp"
#include "selector/time/time.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {

// What every plan of a job at one place shares.
struct GpuSite {
  const Work& work;
  const hardware::Device& device;
  const pricing::Host* host;
  const pricing::Interconnect* interconnect;
  DeviceRates rates;
  const EngineRow& engine;
  AttentionKernel kernel;
  Leftover rest;

  GpuSite(const Work& work, const hardware::Device& device, const pricing::Host* host,
          const pricing::Interconnect* interconnect);
};

// The parts, `sigma` and, for engines that overlap everything, `bound` (else kCompute); the rest is the caller's.
StepTime gpu_step(const GpuSite& site, const job::Plan& plan);

}  // namespace shardfit::timing
