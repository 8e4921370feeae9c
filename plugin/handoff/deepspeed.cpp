// Keys and meanings: DeepSpeed's configuration page (deepspeed.ai/docs/config-json) and
// deepspeed/runtime/zero/config.py.
#include <algorithm>
#include <cmath>

#include "plugin/handoff/exports.hpp"
#include "plugin/handoff/precision.hpp"
#include "regions/base/json.hpp"

namespace shardfit::handoff {
namespace {

using job::Place;

const char* device_name(Place place) { return place == Place::kNvme ? "nvme" : "cpu"; }

// `offload_param` has buffers of a stated size; those of `offload_optimizer` follow from its sub-groups, and DeepSpeed
// refuses a buffer_size there.
OrderedJson offload(Place place, const job::Offload& o, bool of_parameters) {
  OrderedJson j;
  j["device"] = device_name(place);
  if (place == Place::kNvme && !o.nvme_path.empty()) j["nvme_path"] = o.nvme_path;
  j["pin_memory"] = o.pin.value_or(true);
  if (place == Place::kNvme && o.buffers) j["buffer_count"] = *o.buffers;
  if (place == Place::kNvme && o.buffer_bytes && of_parameters) j["buffer_size"] = *o.buffer_bytes;
  return j;
}

std::int64_t elements(std::int64_t bytes, double each) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(static_cast<double>(bytes) / each)));
}

OrderedJson zero(const job::Plan& plan, const Formats& formats) {
  OrderedJson z;
  const int stage = plan.sharding.stage;
  z["stage"] = stage;
  if (stage == 0) return z;
  z["contiguous_gradients"] = true;
  z["overlap_comm"] = stage == 3;  // DeepSpeed's own defaults
  const auto& s = plan.schedule;
  if (s.reduce_bucket_bytes) z["reduce_bucket_size"] = elements(*s.reduce_bucket_bytes, formats.gradient_bytes);
  if (s.gather_bucket_bytes && stage < 3)
    z["allgather_bucket_size"] = elements(*s.gather_bucket_bytes, formats.compute_bytes);
  if (stage == 3) {
    if (s.prefetch_bytes) z["stage3_prefetch_bucket_size"] = elements(*s.prefetch_bytes, formats.compute_bytes);
    if (s.keep_resident_below) z["stage3_param_persistence_threshold"] = *s.keep_resident_below;
    z["stage3_gather_16bit_weights_on_model_save"] = true;
    if (plan.sharding.reshard_after_forward == job::Sharding::Reshard::kOver && plan.sharding.reshard_over > 1)
      z["zero_hpz_partition_size"] = plan.sharding.reshard_over;
    if (plan.sharding.replicate_degree > 1)
      z["mics_shard_size"] = plan.sharding.shard_degree;  // deepspeed.zero.MiCS_Init
  }
  const auto& o = plan.offload;
  if (o.optimizer != Place::kNone) {
    z["offload_optimizer"] = offload(o.optimizer, o, false);
    if (o.optimizer_fraction < 1 && stage == 3) z["offload_optimizer"]["ratio"] = o.optimizer_fraction;
  }
  if (o.parameters != Place::kNone && stage == 3) z["offload_param"] = offload(o.parameters, o, true);
  return z;
}

// nullptr where DeepSpeed has no optimizer of that kind: the script brings its own.
OrderedJson optimizer(const job::Job& job) {
  const auto& name = job.optimizer.name;
  const char* type = name == "adamw"  ? "AdamW"
                     : name == "adam" ? "Adam"
                     : name == "lion" ? "Lion"
                     : name == "muon" ? "Muon"
                                      : nullptr;
  if (!type) return nullptr;
  const auto& t = job.train;
  OrderedJson params;
  if (job.framework.trainer == "transformers") {
    params = {{"lr", "auto"}, {"betas", "auto"}, {"eps", "auto"}, {"weight_decay", "auto"}};
    if (name == "lion" || name == "muon") params.erase("eps");
  } else {
    params = {{"lr", t.learning_rate},
              {"betas", {t.adam_beta1, t.adam_beta2}},
              {"eps", t.adam_epsilon},
              {"weight_decay", t.weight_decay}};
    if (name == "lion" || name == "muon") params.erase("eps");
  }
  return {{"type", type}, {"params", params}};
}

void merge(OrderedJson& into, const Json& from) {
  for (const auto& [key, value] : from.items()) {
    if (value.is_object() && into.contains(key) && into[key].is_object()) {
      merge(into[key], value);
    } else {
      into[key] = value;
    }
  }
}

}  // namespace

std::string deepspeed_json(const job::Job& job, const job::Plan& plan) {
  const auto formats = formats_of(job.precision);
  OrderedJson j;
  j["train_batch_size"] = plan.micro_batch * plan.gradient_accumulation * plan.data_parallel();
  j["train_micro_batch_size_per_gpu"] = plan.micro_batch;
  j["gradient_accumulation_steps"] = plan.gradient_accumulation;
  j["gradient_clipping"] = job.train.max_grad_norm;
  if (formats.compute == job::DType::kBf16) {
    j["bf16"]["enabled"] = true;
    if (formats.without_master) {
      j["bf16"]["bf16_master_weights_and_grads"] = true;
      j["bf16"]["bf16_optimizer_states"] = true;
    }
  } else if (formats.compute == job::DType::kFp16) {
    j["fp16"] = {{"enabled", true}, {"loss_scale", 0}, {"initial_scale_power", 16}};
  }
  if (job.precision.gradients)
    j["data_types"]["grad_accum_dtype"] = std::string(job::name_of(*job.precision.gradients));
  if (job.precision.reduce) j["communication_data_type"] = std::string(job::name_of(*job.precision.reduce));
  j["zero_optimization"] = zero(plan, formats);
  auto opt = optimizer(job);
  if (!opt.is_null()) {
    j["optimizer"] = std::move(opt);
  } else {
    j["zero_allow_untested_optimizer"] = true;
  }
  if (plan.offload.activations == Place::kCpu)
    j["activation_checkpointing"] = {{"partition_activations", false}, {"cpu_checkpointing", true}};
  if (plan.tensor_parallel > 1) j["tensor_parallel"]["autotp_size"] = plan.tensor_parallel;
  if (plan.deepspeed.is_object()) merge(j, plan.deepspeed);
  return j.dump(2) + "\n";
}

}  // namespace shardfit::handoff
