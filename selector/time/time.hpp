// How long one optimizer step takes: the entry point of selector/time.
//
// Two ways in. estimate_time answers one (job, plan) with its assumptions spelled out. Whoever prices many plans of one
// job calls prepare once and a StepTimer a place: a microsecond or two a plan, no allocation.
#pragma once
#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "selector/estimate.hpp"

namespace shardfit::job {
struct Job;
struct Plan;
}  // namespace shardfit::job
namespace shardfit::model {
struct Model;
}
namespace shardfit::hardware {
struct Device;
}
namespace shardfit::pricing {
struct Host;
struct Interconnect;
}  // namespace shardfit::pricing

namespace shardfit::timing {

// Measured rates of a machine (selector/time/calibration.hpp), by which the device "cpu" is predicted at all.
struct Calibration;

// The operators of one job on one model, summed (selector/time/work.hpp).
struct Work;
std::shared_ptr<const Work> prepare(const job::Job& job, const model::Model& model);

enum class Bound { kCompute, kCommunication, kPcie, kCpuOptimizer, kNvme, kInput };
const char* name_of(Bound bound);  // "compute", ..., as in TimeEstimate::bound_by

// Seconds of one optimizer step. The six parts sum to `step`: what each road adds that the ones before it do not hide.
struct StepTime {
  double step = 0, low = 0, high = 0;
  double compute = 0, communication_exposed = 0, pcie_exposed = 0, cpu_optimizer = 0, nvme_exposed = 0, input = 0;
  double sigma = 0;  // of log(step), one standard deviation
  double tokens_per_second_per_gpu = 0;
  Bound bound = Bound::kCompute;  // the largest part; of engines that overlap everything, the slowest road
  bool calibrated = false;
};

// All that a step's time depends on at an offer but its device: equal sites take equal time for equal plans.
struct Site {
  std::optional<double> pcie_gbs, ddr_gbs, optimizer_gparams_per_s, nvme_read_gbs, nvme_write_gbs;
  std::optional<bool> core_binding;
  std::optional<double> gpu_link_gbs, node_gbs;
  friend auto operator<=>(const Site&, const Site&) = default;
};
Site site_of(const pricing::Host* host, const pricing::Interconnect* interconnect);

struct GpuSite;

// Times plans of one job at one place. Keeps references to all of its arguments.
class StepTimer {
 public:
  StepTimer(const Work& work, const hardware::Device& device, const pricing::Host* host = nullptr,
            const pricing::Interconnect* interconnect = nullptr, const Calibration* calibration = nullptr);
  // Throws Error{not_calibrated} for the device "cpu" without a calibration.
  StepTime operator()(const job::Plan& plan) const;

 private:
  const Work& work_;
  const pricing::Interconnect* interconnect_;
  const Calibration* calibration_;
  std::shared_ptr<const GpuSite> gpu_;  // none for the device "cpu"
};

// One plan: the same as StepTimer(work, device, ...)(plan).
StepTime step_time(const Work& work, const job::Plan& plan, const hardware::Device& device,
                   const pricing::Host* host = nullptr, const pricing::Interconnect* interconnect = nullptr,
                   const Calibration* calibration = nullptr);

struct Request {
  const job::Job& job;
  const job::Plan& plan;
  const model::Model& model;
  const hardware::Device& device;
  const pricing::Host* host = nullptr;
  const pricing::Interconnect* interconnect = nullptr;
  const Calibration* calibration = nullptr;
  const Work* work = nullptr;  // from prepare(job, model); made anew when absent
};

struct Result {
  TimeEstimate time;
  std::string basis = "table";  // table | probed | learned
  std::vector<std::string> assumed;
};

// Throws Error{not_calibrated} for the device "cpu" without a calibration (remedy: shardfit calibrate --quick).
Result estimate_time(const Request& request);

// The form that an Estimate carries.
TimeEstimate to_estimate(const StepTime& time);

}  // namespace shardfit::timing
