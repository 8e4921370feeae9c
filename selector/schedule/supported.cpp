#include "selector/schedule/supported.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/precision.hpp"

namespace shardfit::schedule {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& value, const std::string& remedy) {
  throw Error("not_supported", where, fmt::format("{} is not supported by shardfit-train yet", value), remedy);
}

void check_plan(const job::Plan& plan) {
  const auto& sharding = plan.sharding;
  if (sharding.stage != 0 && sharding.stage != 3) refuse("/plan/sharding/stage", fmt::format("stage {}", sharding.stage), "use stage 0 or 3");
  if (sharding.stage == 3 && sharding.replicate_degree != 1)
    refuse("/plan/sharding/replicate_degree", fmt::format("replicate_degree {} with stage 3", sharding.replicate_degree),
           "use replicate_degree 1");
  if (sharding.reshard_after_forward == job::Sharding::Reshard::kOver)
    refuse("/plan/sharding/reshard_after_forward", fmt::format("re-sharding over {} ranks", sharding.reshard_over), "use true, false or \"always\"");
  if (plan.tensor_parallel != 1) refuse("/plan/tensor_parallel", fmt::format("tensor_parallel {}", plan.tensor_parallel), "use 1");
  if (plan.context_parallel != 1) refuse("/plan/context_parallel", fmt::format("context_parallel {}", plan.context_parallel), "use 1");
  if (plan.expert_parallel != 1) refuse("/plan/expert_parallel", fmt::format("expert_parallel {}", plan.expert_parallel), "use 1");
  if (plan.pipeline.degree != 1) refuse("/plan/pipeline_parallel/degree", fmt::format("a pipeline of {} stages", plan.pipeline.degree), "use 1");
  if (plan.accumulate_without_sync && sharding.stage == 3)
    refuse("/plan/accumulate_without_sync", "accumulation of unsharded gradients under stage 3", "use false");
  const auto& checkpointing = plan.checkpointing;
  if (checkpointing.kind != "none" && checkpointing.kind != "full")
    refuse("/plan/activation_checkpointing", fmt::format("activation checkpointing \"{}\"", checkpointing.kind), "use \"none\" or \"full\"");
  if (!checkpointing.modules.empty()) refuse("/plan/activation_checkpointing/modules", "checkpointing of single modules", "use \"full\"");
  if (plan.offload.any()) refuse("/plan/offload", "offload", "leave offload at \"none\"");
  if (plan.offload.buffers || plan.offload.buffer_bytes || plan.offload.tile_elements)
    refuse("/plan/offload", "offload", "leave out buffers, buffer_bytes and tile_elements");
  if (!plan.offload.nvme_path.empty()) refuse("/plan/offload/nvme_path", "swapping to a drive", "leave out nvme_path");
  const auto& schedule = plan.schedule;
  if (schedule.unit_blocks && *schedule.unit_blocks != 1)
    refuse("/plan/schedule/unit", fmt::format("a gather unit of {} blocks", *schedule.unit_blocks), "use \"block\"");
  if (schedule.unit_classes.size() > 1) refuse("/plan/schedule/unit", "several wrapped classes", "use \"block\"");
  if (schedule.prefetch_bytes) refuse("/plan/schedule/prefetch_bytes", "prefetch_bytes", "use prefetch_blocks");
  if (schedule.gather_bucket_bytes) refuse("/plan/schedule/gather_bucket_bytes", "gather_bucket_bytes", "leave it out: one gather a block");
  if (schedule.reduce_bucket_bytes) refuse("/plan/schedule/reduce_bucket_bytes", "reduce_bucket_bytes", "leave it out: one reduction a block");
  if (schedule.keep_resident_below.value_or(0) > 0)
    refuse("/plan/schedule/keep_resident_below", fmt::format("keep_resident_below {}", *schedule.keep_resident_below), "use 0");
}

void check_job(const job::Job& job) {
  if (job.framework.name != "shardfit")
    refuse("/job/framework/name", fmt::format("framework \"{}\"", job.framework.name), "use \"shardfit\", or run that framework's own launcher");
  if (job.method.kind != job::MethodKind::kFull) {
    static constexpr std::array<std::string_view, 5> kNames{"full", "lora", "qlora", "ia3", "partial"};
    refuse("/job/method", fmt::format("method \"{}\"", kNames[static_cast<std::size_t>(job.method.kind)]), "use \"full\"");
  }
  if (job.optimizer.name != "adamw") refuse("/job/optimizer/name", fmt::format("optimizer \"{}\"", job.optimizer.name), "use \"adamw\"");
  if (job.optimizer.in_backward) refuse("/job/optimizer/in_backward", "an update inside the backward pass", "use false");
  if (job.optimizer.paged) refuse("/job/optimizer/paged", "a paged optimizer", "use false");
  if (job.compile != "none") refuse("/job/compile", fmt::format("compile \"{}\"", job.compile), "use \"none\"");
  if (job.decoder_sequence_length) refuse("/job/decoder_sequence_length", "an encoder-decoder model", "leave it out");
  precision_of(job);
}

void check_model(const model::Model& model) {
  static constexpr std::array<std::string_view, 5> kFamilies{"llama", "mistral", "qwen2", "qwen3", "gpt2"};
  if (std::find(kFamilies.begin(), kFamilies.end(), model.family) == kFamilies.end())
    refuse("/model_type", fmt::format("model family \"{}\"", model.family), "train a Llama, Mistral, Qwen2, Qwen3 or GPT-2 model");
  if (model.encoder_decoder || !model.is_causal) refuse("/architectures", "a model that is not a causal decoder", "train a causal language model");
}

}  // namespace

void check_supported(const job::Job& job, const job::Plan& plan, const model::Model* model) {
  check_job(job);
  check_plan(plan);
  if (model) check_model(*model);
}

std::optional<std::string> why_unsupported(const job::Job& job, const job::Plan& plan, const model::Model* model) {
  try {
    check_supported(job, plan, model);
    return std::nullopt;
  } catch (const Error& error) {
    return error.message;
  }
}

}  // namespace shardfit::schedule
