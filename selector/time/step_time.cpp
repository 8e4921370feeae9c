// The entry point: which device a step runs on, and what its parts sum to.
#include <algorithm>
#include <cmath>

#include "regions/base/error.hpp"
#include "selector/time/cpu_step.hpp"
#include "selector/time/gpu_step.hpp"
#include "selector/time/range.hpp"
#include "selector/time/time.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {
namespace {

void finish(StepTime& time, const Work& work, const job::Plan& plan) {
  time.step = time.compute + time.communication_exposed + time.pcie_exposed + time.cpu_optimizer + time.nvme_exposed +
              time.input;
  const double width = std::exp(kRangeWidth * time.sigma);
  time.low = time.step / width;
  time.high = time.step * width;
  const double sequences = static_cast<double>(plan.micro_batch) * static_cast<double>(plan.gradient_accumulation) *
                           static_cast<double>(plan.data_parallel());
  const double tokens = work.batch_tokens > 0 ? work.batch_tokens : sequences * work.sequence;
  time.tokens_per_second_per_gpu = time.step > 0 ? tokens / time.step / static_cast<double>(plan.gpus()) : 0;
}

Bound largest_part(const StepTime& time) {
  Bound bound = Bound::kCompute;
  double most = time.compute;
  const auto consider = [&](double seconds, Bound candidate) {
    if (seconds > most) {
      most = seconds;
      bound = candidate;
    }
  };
  consider(time.communication_exposed, Bound::kCommunication);
  consider(time.pcie_exposed, Bound::kPcie);
  consider(time.cpu_optimizer, Bound::kCpuOptimizer);
  consider(time.nvme_exposed, Bound::kNvme);
  consider(time.input, Bound::kInput);
  return bound;
}

}  // namespace

const char* name_of(Bound bound) {
  switch (bound) {
    case Bound::kCompute: return "compute";
    case Bound::kCommunication: return "communication";
    case Bound::kPcie: return "pcie";
    case Bound::kCpuOptimizer: return "cpu_optimizer";
    case Bound::kNvme: return "nvme";
    case Bound::kInput: return "input";
  }
  return "compute";
}

Site site_of(const pricing::Host* host, const pricing::Interconnect* interconnect) {
  Site site;
  if (host) {
    site.pcie_gbs = host->pcie_gbs;
    site.ddr_gbs = host->ddr_gbs;
    site.optimizer_gparams_per_s = host->optimizer_gparams_per_s;
    site.core_binding = host->core_binding;
    if (host->nvme) {
      site.nvme_read_gbs = host->nvme->read_gbs;
      site.nvme_write_gbs = host->nvme->write_gbs;
    }
  }
  if (interconnect) {
    site.gpu_link_gbs = interconnect->gpu_link_gbs;
    site.node_gbs = interconnect->node_gbs;
  }
  return site;
}

StepTimer::StepTimer(const Work& work, const hardware::Device& device, const pricing::Host* host,
                     const pricing::Interconnect* interconnect, const Calibration* calibration)
    : work_(work), interconnect_(interconnect), calibration_(calibration) {
  if (!device.is_cpu) gpu_ = std::make_shared<const GpuSite>(work, device, host, interconnect);
}

StepTime StepTimer::operator()(const job::Plan& plan) const {
  if (!(work_.sequence > 0))
    throw Error("missing_key", "/job/sequence_length", "sequence_length is not stated",
                "state the tokens of a sequence");
  if (!gpu_ && !calibration_)
    throw Error("not_calibrated", "/plan/gpu", "the device \"cpu\" has no measured rates on this machine",
                "run shardfit calibrate --quick");
  StepTime time = gpu_ ? gpu_step(*gpu_, plan) : cpu_step(work_, plan, *calibration_, interconnect_);
  finish(time, work_, plan);
  if (!gpu_ || time.bound == Bound::kCompute) time.bound = largest_part(time);
  time.calibrated = !gpu_;
  return time;
}

StepTime step_time(const Work& work, const job::Plan& plan, const hardware::Device& device, const pricing::Host* host,
                   const pricing::Interconnect* interconnect, const Calibration* calibration) {
  return StepTimer(work, device, host, interconnect, calibration)(plan);
}

std::shared_ptr<const Work> prepare(const job::Job& job, const model::Model& model) {
  return std::make_shared<const Work>(make_work(job, model));
}

}  // namespace shardfit::timing
