// estimate_time: one answer with its assumptions.
#include <fmt/format.h>

#include <algorithm>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/time/attention_kernels.hpp"
#include "selector/time/calibration.hpp"
#include "selector/time/collectives.hpp"
#include "selector/time/device_rates.hpp"
#include "selector/time/engines.hpp"
#include "selector/time/time.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {
namespace {

void assume(const Request& request, const Work& work, std::vector<std::string>& assumed) {
  const DeviceRates rates = device_rates(request.device);
  const Links links = links_of(request.plan, request.device, rates, request.host, request.interconnect);
  const AttentionKernel kernel = attention_kernel(work, rates);
  if (!kernel.stated && work.attention == AttentionWord::kFlash)
    assumed.push_back(fmt::format(
        "attention=flash runs as {} (by framework and GPU; state flash1, flash2, flash3, cudnn or flex)", kernel.name));
  if (rates.guessed) assumed.push_back(fmt::format("rates of {} scaled from its datasheet", request.device.key));
  if (links.node_assumed) assumed.push_back(fmt::format("interconnect.node_gbs={:g}", links.node / 1e9));
  const job::Offload& offload = request.plan.offload;
  if (offload.any() && links.pcie_assumed) assumed.push_back(fmt::format("host.pcie_gbs={:g}", links.pcie / 1e9));
  if (offload.optimizer != job::Place::kNone &&
      !(request.host && (request.host->optimizer_gparams_per_s || request.host->ddr_gbs)))
    assumed.push_back("host.optimizer_gparams_per_s by framework and ranks");
  const bool nvme = offload.optimizer == job::Place::kNvme || offload.parameters == job::Place::kNvme;
  if (nvme && !(request.host && request.host->nvme && request.host->nvme->read_gbs))
    assumed.push_back("host.nvme.read_gbs=5");
  if (request.plan.pipeline.degree > 1 && !request.plan.pipeline.virtual_stages && work.engine == Engine::kMegatron)
    assumed.push_back("pipeline_parallel.virtual_stages=5 (Megatron recipes interleave)");
  if (!request.plan.checkpointing.stated) assumed.push_back("activation_checkpointing=none");
  if (!leftover(work, rates.generation).measured)
    assumed.push_back(
        fmt::format("no measurement of {} on this GPU generation: rates of its kind", engine_name(work.engine)));
}

void assume_cpu(const Request& request, const Work& work, std::vector<std::string>& assumed) {
  bool exact = false;
  const BusyRates* rates =
      request.calibration->find(static_cast<int>(std::clamp<std::int64_t>(request.plan.gpus_per_node, 1, 1 << 20)),
                                static_cast<int>(std::clamp(request.plan.cpus_per_gpu.value_or(0), 0.0, 1e6)),
                                work.compute == Compute::kFp32 ? "fp32" : "bf16", exact);
  if (!rates) return;
  assumed.push_back(fmt::format("rates measured on {} with {} ranks of {} threads in {}, {}{}",
                                request.calibration->cpu, rates->ranks, rates->threads, rates->type, rates->as_of,
                                exact ? "" : " (not for this plan's ranks and threads)"));
  if (const std::string type = work.compute == Compute::kFp32 ? "fp32" : "bf16"; rates->type != type)
    assumed.push_back(
        fmt::format("{} runs at the rates of {}: shardfit calibrate --type {} would tell", type, rates->type, type));
  if (rates->disturbed > 0.1)
    assumed.push_back(fmt::format("other programs take {:.0f} % of the processors, as they did during calibration",
                                  100 * rates->disturbed));
  if (request.plan.nodes > 1 && !(request.interconnect && request.interconnect->node_gbs))
    assumed.push_back("interconnect.node_gbs=1.25");
}

}  // namespace

TimeEstimate to_estimate(const StepTime& time) {
  TimeEstimate out;
  out.step = time.step;
  out.step_low = time.low;
  out.step_high = time.high;
  out.tokens_per_second_per_gpu = time.tokens_per_second_per_gpu;
  out.bound_by = name_of(time.bound);
  out.parts = {{"compute", time.compute},           {"communication_exposed", time.communication_exposed},
               {"pcie_exposed", time.pcie_exposed}, {"cpu_optimizer", time.cpu_optimizer},
               {"nvme_exposed", time.nvme_exposed}, {"input", time.input}};
  return out;
}

Result estimate_time(const Request& request) {
  std::shared_ptr<const Work> made;
  if (!request.work) made = prepare(request.job, request.model);
  const Work& work = request.work ? *request.work : *made;
  Result result;
  const StepTime time =
      step_time(work, request.plan, request.device, request.host, request.interconnect, request.calibration);
  result.time = to_estimate(time);
  result.basis = time.calibrated ? "probed" : "table";
  result.assumed = work.assumed;
  if (!request.device.is_cpu) assume(request, work, result.assumed);
  else if (request.calibration) assume_cpu(request, work, result.assumed);
  return result;
}

}  // namespace shardfit::timing
