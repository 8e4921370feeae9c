#include "selector/schedule/supported.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/precision.hpp"

namespace shardfit::schedule {
namespace {

// What is refused, and what to do about it; none where all is fine. A value, not an exception: a search asks of
// thousands of plans.
struct Refusal {
  std::string where, message, remedy;
};
using Verdict = std::optional<Refusal>;

Verdict refuse(std::string where, const std::string& value, std::string remedy) {
  return Refusal{std::move(where), fmt::format("{} is not supported by shardfit-train yet", value), std::move(remedy)};
}

// Settings of the frameworks' own sections that would change where things lie or what a step computes: taking a run
// without them for one with them would be wrong, so a warning is not enough.
Verdict check_sections(const job::Plan& plan) {
  // clang-format off
  static constexpr std::array<std::string_view, 14> kNever{
      "/deepspeed/zero_optimization/cpu_offload",        "/deepspeed/zero_optimization/cpu_offload_params",
      "/deepspeed/zero_optimization/zenflow/offload",    "/deepspeed/activation_checkpointing/cpu_checkpointing",
      "/deepspeed/zero_optimization/zero_quantized_weights", "/deepspeed/zero_optimization/zero_quantized_gradients",
      "/deepspeed/fp16/enabled",                         "/deepspeed/amp/enabled",
      "/fsdp/activation_cpu_offload",                    "/fsdp/fsdp_activation_cpu_offload",
      "/megatron/optimizer-cpu-offload",                 "/megatron/cpu-offloading",
      "/megatron/fine-grained-activation-offloading",    "/megatron/use-megatron-fsdp"};
  static constexpr std::array<std::string_view, 3> kAtMostOne{"/deepspeed/zero_optimization/zero_hpz_partition_size", "/deepspeed/sequence_parallel_size",
                                                              "/deepspeed/tensor_parallel/autotp_size"};
  // clang-format on
  if (plan.deepspeed.empty() && plan.fsdp.empty() && plan.megatron.empty()) return std::nullopt;
  const auto stated = [&](std::string_view path) -> const nlohmann::json* {
    const auto section = path.substr(1, path.find('/', 1) - 1);
    const auto& object = section == "deepspeed" ? plan.deepspeed : section == "fsdp" ? plan.fsdp : plan.megatron;
    const nlohmann::json::json_pointer rest{std::string(path.substr(section.size() + 1))};
    if (object.is_object() && object.contains(rest)) return &object.at(rest);
    auto underscored = rest.to_string();  // Megatron's Python names
    std::replace(underscored.begin(), underscored.end(), '-', '_');
    const nlohmann::json::json_pointer other{underscored};
    return object.is_object() && object.contains(other) ? &object.at(other) : nullptr;
  };
  for (const auto path : kNever)
    if (const auto* value = stated(path); value && (*value == true || *value == "true"))
      return refuse(fmt::format("/plan{}", path), value->dump(), "leave it out");
  for (const auto path : kAtMostOne)
    if (const auto* value = stated(path); value && value->is_number() && *value > 1)
      return refuse(fmt::format("/plan{}", path), value->dump(), "leave it out");
  return std::nullopt;
}

Verdict check_offload(const job::Offload& offload) {
  const std::pair<const char*, job::Place> parts[] = {{"parameters", offload.parameters},
                                                      {"gradients", offload.gradients},
                                                      {"optimizer", offload.optimizer},
                                                      {"activations", offload.activations}};
  for (const auto& [key, place] : parts)
    if (place != job::Place::kNone)
      return refuse(fmt::format("/plan/offload/{}", key),
                    fmt::format("offload of {} to \"{}\"", key, place == job::Place::kCpu ? "cpu" : "nvme"),
                    "use \"none\"");
  const std::pair<const char*, bool> sizes[] = {{"buffers", offload.buffers.has_value()},
                                                {"buffer_bytes", offload.buffer_bytes.has_value()},
                                                {"tile_elements", offload.tile_elements.has_value()}};
  for (const auto& [key, stated] : sizes)
    if (stated) return refuse(fmt::format("/plan/offload/{}", key), "offload", "leave it out");
  if (!offload.nvme_path.empty()) return refuse("/plan/offload/nvme_path", "swapping to a drive", "leave it out");
  if (offload.optimizer_fraction != 1)
    return refuse("/plan/offload/optimizer_fraction",
                  fmt::format("offload of {} of the optimizer", offload.optimizer_fraction), "leave it out");
  if (offload.schedule != "serial")
    return refuse("/plan/offload/schedule", fmt::format("offload schedule \"{}\"", offload.schedule), "leave it out");
  return std::nullopt;
}

Verdict check_plan(const job::Plan& plan) {
  const auto& sharding = plan.sharding;
  if (sharding.stage != 0 && sharding.stage != 3)
    return refuse("/plan/sharding/stage", fmt::format("stage {}", sharding.stage), "use stage 0 or 3");
  if (sharding.stage == 3 && sharding.replicate_degree != 1)
    return refuse("/plan/sharding/replicate_degree",
                  fmt::format("replicate_degree {} with stage 3", sharding.replicate_degree), "use replicate_degree 1");
  if (sharding.reshard_after_forward == job::Sharding::Reshard::kOver)
    return refuse("/plan/sharding/reshard_after_forward",
                  fmt::format("re-sharding over {} ranks", sharding.reshard_over), "use true, false or \"always\"");
  if (plan.tensor_parallel != 1)
    return refuse("/plan/tensor_parallel", fmt::format("tensor_parallel {}", plan.tensor_parallel), "use 1");
  if (plan.context_parallel != 1)
    return refuse("/plan/context_parallel", fmt::format("context_parallel {}", plan.context_parallel), "use 1");
  if (plan.expert_parallel != 1)
    return refuse("/plan/expert_parallel", fmt::format("expert_parallel {}", plan.expert_parallel), "use 1");
  if (plan.sequence_parallel) return refuse("/plan/sequence_parallel", "sequence_parallel", "use false");
  if (plan.pipeline.degree != 1)
    return refuse("/plan/pipeline_parallel/degree", fmt::format("a pipeline of {} stages", plan.pipeline.degree),
                  "use 1");
  if (plan.pipeline.virtual_stages.value_or(1) != 1)
    return refuse("/plan/pipeline_parallel/virtual_stages",
                  fmt::format("a pipeline of {} virtual stages", *plan.pipeline.virtual_stages), "use 1");
  if (plan.pipeline.schedule != "1f1b")
    return refuse("/plan/pipeline_parallel/schedule", fmt::format("pipeline schedule \"{}\"", plan.pipeline.schedule),
                  "leave it out");
  if (plan.accumulate_without_sync && sharding.stage == 3)
    return refuse("/plan/accumulate_without_sync", "accumulation of unsharded gradients under stage 3", "use false");
  const auto& checkpointing = plan.checkpointing;
  if (checkpointing.kind != "none" && checkpointing.kind != "full")
    return refuse("/plan/activation_checkpointing", fmt::format("activation checkpointing \"{}\"", checkpointing.kind),
                  "use \"none\" or \"full\"");
  if (!checkpointing.modules.empty())
    return refuse("/plan/activation_checkpointing/modules", "checkpointing of single modules", "use \"full\"");
  if (checkpointing.save)
    return refuse("/plan/activation_checkpointing/save", fmt::format("keeping \"{}\"", *checkpointing.save),
                  "leave it out");
  if (auto refused = check_sections(plan)) return refused;  // first: some of their keys also fill `offload`
  if (auto refused = check_offload(plan.offload)) return refused;
  const auto& schedule = plan.schedule;
  if (schedule.unit_blocks && *schedule.unit_blocks != 1)
    return refuse("/plan/schedule/unit", fmt::format("a gather unit of {} blocks", *schedule.unit_blocks),
                  "use \"block\"");
  if (schedule.unit_classes.size() > 1)
    return refuse("/plan/schedule/unit", "several wrapped classes", "use \"block\"");
  if (schedule.prefetch_bytes) return refuse("/plan/schedule/prefetch_bytes", "prefetch_bytes", "use prefetch_blocks");
  if (schedule.gather_bucket_bytes)
    return refuse("/plan/schedule/gather_bucket_bytes", "gather_bucket_bytes", "leave it out: one gather a block");
  if (schedule.reduce_bucket_bytes)
    return refuse("/plan/schedule/reduce_bucket_bytes", "reduce_bucket_bytes", "leave it out: one reduction a block");
  if (schedule.keep_resident_below.value_or(0) > 0)
    return refuse("/plan/schedule/keep_resident_below",
                  fmt::format("keep_resident_below {}", *schedule.keep_resident_below), "use 0");
  if (!schedule.limit_gathers.value_or(true))
    return refuse("/plan/schedule/limit_gathers", "gathering without a limit", "use true");
  if (plan.expandable_segments)
    return refuse("/plan/allocator/expandable_segments", "an allocator with expandable segments",
                  "use false: all buffers are allocated once");
  if (plan.checkpoint_load != "sharded")
    return refuse("/plan/checkpoint_load", fmt::format("loading by \"{}\"", plan.checkpoint_load), "use \"sharded\"");
  return std::nullopt;
}

Verdict check_job(const job::Job& job) {
  if (job.framework.name != "shardfit")
    return refuse("/job/framework/name", fmt::format("framework \"{}\"", job.framework.name),
                  "use \"shardfit\", or run that framework's own launcher");
  if (job.method.kind != job::MethodKind::kFull) {
    static constexpr std::array<std::string_view, 5> kNames{"full", "lora", "qlora", "ia3", "partial"};
    return refuse("/job/method", fmt::format("method \"{}\"", kNames[static_cast<std::size_t>(job.method.kind)]),
                  "use \"full\"");
  }
  if (job.optimizer.name != "adamw")
    return refuse("/job/optimizer/name", fmt::format("optimizer \"{}\"", job.optimizer.name), "use \"adamw\"");
  if (job.optimizer.implementation && *job.optimizer.implementation != "fused")
    return refuse("/job/optimizer/implementation",
                  fmt::format("optimizer implementation \"{}\"", *job.optimizer.implementation), "use \"fused\"");
  if (job.optimizer.in_backward)
    return refuse("/job/optimizer/in_backward", "an update inside the backward pass", "use false");
  if (job.optimizer.paged) return refuse("/job/optimizer/paged", "a paged optimizer", "use false");
  if (job.compile != "none") return refuse("/job/compile", fmt::format("compile \"{}\"", job.compile), "use \"none\"");
  if (job.attention && *job.attention != "flash" && *job.attention != "sdpa")
    return refuse("/job/attention", fmt::format("attention \"{}\"", *job.attention),
                  "use \"flash\": tiles with an online softmax");
  // The head works in chunks of rows and takes their gradient at once, however the loss is called; it never holds all
  // logits.
  if (job.loss.kind == "fused")
    return refuse("/job/loss", "loss \"fused\"", "use \"plain\", \"chunked\" or \"fused_linear\"");
  if (job.loss.over && *job.loss.over != "hidden")
    return refuse("/job/loss/over", fmt::format("chunking over \"{}\"", *job.loss.over), "use \"hidden\"");
  if (job.loss.keeps_outputs.value_or(false))
    return refuse("/job/loss/keeps_outputs", "keeping the logits", "use false");
  if (job.fused_kernels && !job.fused_kernels->empty())
    return refuse("/job/fused_kernels", fmt::format("fused kernel \"{}\"", job.fused_kernels->front()),
                  "leave it out: the runtime has its own kernels");
  if (!job.framework.trainer.empty())
    return refuse("/job/framework/trainer", fmt::format("trainer \"{}\"", job.framework.trainer),
                  "leave it out, or run that trainer's own launcher");
  if (job.decoder_sequence_length)
    return refuse("/job/decoder_sequence_length", "an encoder-decoder model", "leave it out");
  precision_of(job);
  return std::nullopt;
}

// A wrapped class must be the decoder layer: one gather a block is all there is.
Verdict check_unit(const job::Plan& plan, const model::Model& model) {
  if (plan.schedule.unit_classes.empty()) return std::nullopt;
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kLayers{
      {{"llama", "LlamaDecoderLayer"},
       {"mistral", "MistralDecoderLayer"},
       {"qwen2", "Qwen2DecoderLayer"},
       {"qwen3", "Qwen3DecoderLayer"},
       {"gpt2", "GPT2Block"}}};
  for (const auto& [family, layer] : kLayers)
    if (family == model.family && layer != plan.schedule.unit_classes.front())
      return refuse("/plan/schedule/unit", fmt::format("wrapping \"{}\"", plan.schedule.unit_classes.front()),
                    fmt::format("use \"block\" or [\"{}\"]", layer));
  return std::nullopt;
}

Verdict check_model(const model::Model& model) {
  static constexpr std::array<std::string_view, 5> kFamilies{"llama", "mistral", "qwen2", "qwen3", "gpt2"};
  if (std::find(kFamilies.begin(), kFamilies.end(), model.family) == kFamilies.end())
    return refuse("/model_type", fmt::format("model family \"{}\"", model.family),
                  "train a Llama, Mistral, Qwen2, Qwen3 or GPT-2 model");
  if (model.encoder_decoder || !model.is_causal)
    return refuse("/architectures", "a model that is not a causal decoder", "train a causal language model");
  return std::nullopt;
}

Verdict check_all(const job::Job& job, const job::Plan& plan, const model::Model* model) {
  if (auto refused = check_job(job)) return refused;
  if (auto refused = check_plan(plan)) return refused;
  if (!model) return std::nullopt;
  if (auto refused = check_model(*model)) return refused;
  if (auto refused = check_unit(plan, *model)) return refused;
  // Learned positions end somewhere; rotary ones do not.
  if (model->family == "gpt2" && job.sequence_length > model->max_positions)
    throw Error("out_of_range", "/job/sequence_length",
                fmt::format("{} tokens are more than the {} positions that the model has learned", job.sequence_length,
                            model->max_positions),
                fmt::format("use at most {}", model->max_positions));
  return std::nullopt;
}

}  // namespace

void check_supported(const job::Job& job, const job::Plan& plan, const model::Model* model) {
  if (const auto refused = check_all(job, plan, model))
    throw Error("not_supported", refused->where, refused->message, refused->remedy);
}

std::optional<std::string> why_unsupported(const job::Job& job, const job::Plan& plan, const model::Model* model) {
  try {
    const auto refused = check_all(job, plan, model);
    return refused ? std::optional(refused->message) : std::nullopt;
  } catch (const Error& error) {  // precisions and lengths out of range
    return error.message;
  }
}

std::optional<std::string> without_effect(const job::Plan& plan) {
  static constexpr std::array<std::string_view, 24> kWithEffect{"deepspeed/train_micro_batch_size_per_gpu",
                                                                "deepspeed/gradient_accumulation_steps",
                                                                "deepspeed/zero_optimization/stage",
                                                                "deepspeed/zero_optimization/offload_param/device",
                                                                "deepspeed/zero_optimization/offload_optimizer/device",
                                                                "deepspeed/zero_optimization/offload_optimizer/ratio",
                                                                "fsdp/sharding_strategy",
                                                                "fsdp/fsdp_sharding_strategy",
                                                                "fsdp/reshard_after_forward",
                                                                "fsdp/fsdp_reshard_after_forward",
                                                                "fsdp/offload_params",
                                                                "fsdp/fsdp_offload_params",
                                                                "fsdp/cpu_offload",
                                                                "fsdp/fsdp_cpu_offload",
                                                                "fsdp/limit_all_gathers",
                                                                "fsdp/fsdp_limit_all_gathers",
                                                                "megatron/tensor-model-parallel-size",
                                                                "megatron/pipeline-model-parallel-size",
                                                                "megatron/context-parallel-size",
                                                                "megatron/expert-model-parallel-size",
                                                                "megatron/sequence-parallel",
                                                                "megatron/micro-batch-size",
                                                                "megatron/use-megatron-fsdp",
                                                                "megatron/cpu-offloading"};
  std::vector<std::string> keys;
  const auto walk = [&](const auto& self, const std::string& path, const nlohmann::json& value) -> void {
    if (value.is_object()) {
      for (const auto& [key, inner] : value.items()) self(self, path + "/" + key, inner);
      return;
    }
    if (value.is_null() || value == "auto") return;  // not stated
    auto dashed = path;
    if (path.starts_with("megatron/")) std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (std::find(kWithEffect.begin(), kWithEffect.end(), dashed) == kWithEffect.end()) keys.push_back(path);
  };
  walk(walk, "deepspeed", plan.deepspeed);
  walk(walk, "fsdp", plan.fsdp);
  walk(walk, "megatron", plan.megatron);
  if (keys.empty()) return std::nullopt;
  return fmt::format("keys of the plan without effect in shardfit-train: {}", fmt::join(keys, ", "));
}

}  // namespace shardfit::schedule
