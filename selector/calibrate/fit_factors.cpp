// Holds whole steps, measured through the engine, against what the single rates predict of them.
#include <algorithm>
#include <cmath>

#include "regions/base/json.hpp"
#include "selector/calibrate/calibration.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/time/cpu_step.hpp"

namespace shardfit::calibrate {
namespace {

// A factor beyond these says that the measurement was disturbed, not that the rates are wrong by so much.
constexpr double kLeast = 0.5, kMost = 2;

// Geometric mean of measured over predicted; 1 where nothing can be compared.
class Ratio {
 public:
  void add(double measured, double predicted) {
    if (measured <= 0 || predicted <= 0) return;
    sum_ += std::log(measured / predicted);
    ++count_;
  }
  double value() const { return count_ == 0 ? 1 : std::clamp(std::exp(sum_ / count_), kLeast, kMost); }

 private:
  double sum_ = 0;
  int count_ = 0;
};

}  // namespace

void fit_factors(BusyRates& rates) {
  Ratio compute, communication, update;
  for (const timing::StepSample& sample : rates.steps) {
    const model::Model model = model::parse_model(sample.config, "");
    const Json job_json = {{"model", "probe"},
                           {"sequence_length", sample.sequence},
                           {"precision", rates.type == "fp32" ? "fp32" : "bf16-mixed"},
                           {"framework", {{"name", "shardfit"}}}};
    const Json plan_json = {{"gpu", "cpu"},
                            {"gpus_per_node", rates.ranks},
                            {"cpus_per_gpu", rates.threads},
                            {"micro_batch", sample.micro_batch},
                            {"sharding", {{"stage", sample.stage}, {"shard_degree", rates.ranks}}}};
    const auto work = timing::prepare(job::parse_job(job_json, ""), model);
    const timing::CpuParts predicted = timing::cpu_parts(*work, job::parse_plan(plan_json), rates);
    compute.add(sample.compute, predicted.compute);
    communication.add(sample.communication, predicted.communication);
    update.add(sample.update, predicted.update);
  }
  rates.compute_factor = compute.value();
  rates.communication_factor = communication.value();
  rates.update_factor = update.value();
}

}  // namespace shardfit::calibrate
