#include "selector/schedule/precision.hpp"

#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"

namespace shardfit::schedule {

using job::DType;

std::int64_t width_of(DType type) { return static_cast<std::int64_t>(job::bytes_of(type)); }

RunPrecision precision_of(const job::Job& job) {
  const auto& stated = job.precision;
  auto refuse = [](const std::string& where, std::string_view value) {
    throw Error("not_supported", where, fmt::format("{} is not supported by shardfit-train yet", value),
                "use \"fp32\", \"bf16-mixed\" or \"bf16\"");
  };
  RunPrecision run;
  if (stated.name == "fp32") {
  } else if (stated.name == "bf16-mixed") {
    run.compute = DType::kBf16;
  } else if (stated.name == "bf16") {
    run.parameters = run.compute = run.gradients = run.states = DType::kBf16;
  } else if (stated.name.empty()) {
    if (stated.autocast.value_or(false)) refuse("/job/precision/autocast", "autocast");
    if (stated.fp8_recipe) refuse("/job/precision/fp8_recipe", "fp8");
    run.compute = stated.compute.value_or(stated.parameters.value_or(DType::kFp32));
    if (stated.master && *stated.master != DType::kNone && stated.parameters && *stated.parameters != run.compute &&
        *stated.parameters != *stated.master)
      refuse("/job/precision/parameters",
             fmt::format("{} beside a {} master", job::name_of(*stated.parameters), job::name_of(*stated.master)));
    if (stated.norms && *stated.norms != run.compute)
      refuse("/job/precision/norms", fmt::format("{} norms", job::name_of(*stated.norms)));
    run.parameters =
        stated.master && *stated.master != DType::kNone ? *stated.master : stated.parameters.value_or(DType::kFp32);
    run.gradients = stated.reduce.value_or(stated.gradients.value_or(run.parameters));
    run.states = run.parameters;
    if (stated.gradients && *stated.gradients != run.gradients && *stated.gradients != run.compute)
      refuse("/job/precision/gradients", job::name_of(*stated.gradients));
  } else {
    refuse("/job/precision", fmt::format("precision \"{}\"", stated.name));
  }
  if (job.optimizer.states) run.states = *job.optimizer.states;
  auto known = [](DType type) { return type == DType::kFp32 || type == DType::kBf16; };
  if (!known(run.parameters)) refuse("/job/precision/parameters", job::name_of(run.parameters));
  if (!known(run.compute)) refuse("/job/precision/compute", job::name_of(run.compute));
  if (!known(run.gradients)) refuse("/job/precision/reduce", job::name_of(run.gradients));
  if (!known(run.states)) refuse("/job/optimizer/states", job::name_of(run.states));
  if (run.compute == DType::kFp32 && (run.parameters != DType::kFp32 || run.gradients != DType::kFp32))
    refuse("/job/precision", "computing in fp32 over narrower parameters or gradients");
  return run;
}

}  // namespace shardfit::schedule
