// DeepSpeed's configuration (deepspeed/runtime/zero/config.py, offload_config.py, runtime/config.py of 0.19): defaults, what the
// Trainer fills in for "auto", and the combinations that DeepSpeed refuses.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/setup_parts.hpp"

namespace shardfit::memory {

namespace {

using job::Place;

const nlohmann::json kEmpty = nlohmann::json::object();

const nlohmann::json& object_at(const nlohmann::json& parent, const char* key) {
  const auto it = parent.find(key);
  return it != parent.end() && it->is_object() ? *it : kEmpty;
}

// The settings of one section, under their name in the configuration or the field's name in the source.
class Keys {
 public:
  explicit Keys(const nlohmann::json& section) : section_(section) {}

  const nlohmann::json* find(const char* key) const {
    auto it = section_.find(key);
    if (it == section_.end() && std::string_view(key).substr(0, 7) == "stage3_") it = section_.find(key + 7);
    return it == section_.end() || it->is_null() ? nullptr : &*it;
  }
  bool is_auto(const char* key) const {
    const auto* v = find(key);
    return v && v->is_string() && v->get_ref<const std::string&>() == "auto";
  }
  double number(const char* key, double fallback) const {
    const auto* v = find(key);
    return v && v->is_number() && v->get<double>() >= 0 ? v->get<double>() : fallback;
  }
  bool flag(const char* key, bool fallback) const {
    const auto* v = find(key);
    return v && v->is_boolean() ? v->get<bool>() : fallback;
  }
  double bytes(const char* key, double fallback) const {   // "fp16", "bfp16", "fp32" and their like
    const auto* v = find(key);
    if (!v || !v->is_string()) return fallback;
    const auto& word = v->get_ref<const std::string&>();
    return word.find("32") != std::string::npos || word == "float" ? 4 : word.find("16") != std::string::npos || word == "half" ? 2 : fallback;
  }

 private:
  const nlohmann::json& section_;
};

Error conflict(const char* key, std::string message, std::string remedy) {
  return {"conflict", std::string("/plan/deepspeed/zero_optimization") + (*key ? "/" : "") + key, std::move(message), std::move(remedy)};
}

void refuse(const Setup& s, const Keys& z) {
  const auto& zero = s.zero;
  const std::int64_t ranks = s.plan.sharding.shard_degree * s.plan.sharding.replicate_degree;
  // utils/groups.py _create_zero_param_parallel_group
  if (zero.second_shard > 1) {
    if (s.stage < 3) throw conflict("zero_hpz_partition_size", fmt::format("a second shard inside the node needs stage 3, this plan has stage {}", s.stage), "set stage 3 or zero_hpz_partition_size 1");
    if (zero.second_shard > ranks || ranks % zero.second_shard != 0)
      throw conflict("zero_hpz_partition_size", fmt::format("{} does not divide the {} ranks", zero.second_shard, ranks), "use a divisor of the number of ranks, normally the GPUs of a node");
  }
  // runtime/zero/mics_utils.py create_mics_comm_groups
  if (zero.mics > 0) {
    if (s.stage < 3) throw conflict("mics_shard_size", fmt::format("MiCS is a way of stage 3, this plan has stage {}", s.stage), "set stage 3 or remove mics_shard_size");
    if (zero.mics > ranks || ranks % zero.mics != 0)
      throw conflict("mics_shard_size", fmt::format("{} does not divide the {} ranks", zero.mics, ranks), "use a divisor of the number of ranks");
    if (s.offload_parameters) throw conflict("mics_shard_size", "MiCS does not offload parameters (MiCS_Optimizer keeps them on the device)", "remove offload_param or mics_shard_size");
    if (zero.release >= 1907 && zero.release != 99999999)
      throw conflict("mics_shard_size", "DeepSpeed has no MiCS since 0.19.7", "use zero_hpz_partition_size, or an older DeepSpeed");
  }
  if (s.stage == 3 && zero.quantized_gradients && !zero.reduce_scatter)   // stage3.py: all2all_process_group
    throw conflict("zero_quantized_gradients", "quantized gradients need reduce_scatter", "set reduce_scatter true");
  if (zero.loco && !zero.quantized_gradients)
    throw conflict("zeropp_loco_param", "LoCo corrects quantized gradients, and zero_quantized_gradients is off", "set zero_quantized_gradients true");
  if (s.stage < 3 && zero.super_offload) throw conflict("offload_optimizer/super_offload", fmt::format("SuperOffload needs stage 3, this plan has stage {}", s.stage), "set stage 3");
  if (s.plan.offload.optimizer == Place::kNvme && s.stage == 3 && zero.optimizer_buffers < static_cast<double>(s.states + 2))
    throw conflict("offload_optimizer/buffer_count",
                   fmt::format("{:.0f} buffers, and a sub-group's parameter, gradient and {} states are read at once", zero.optimizer_buffers, s.states),
                   fmt::format("set buffer_count to at least {}", s.states + 2));
  (void)z;
}

void set_offload_keys(Setup& s, const nlohmann::json& section) {
  auto& zero = s.zero;
  const Keys param(object_at(section, "offload_param")), optimizer(object_at(section, "offload_optimizer"));
  const auto& o = s.plan.offload;
  // offload_config.py: pin_memory is true since 0.19.5, false before
  const bool pins = o.pin.value_or(zero.release >= 1905);
  zero.pins_parameters = param.flag("pin_memory", pins);
  zero.pins_optimizer = optimizer.flag("pin_memory", pins);
  zero.parameter_buffers = param.number("buffer_count", static_cast<double>(o.buffers.value_or(5)));
  zero.optimizer_buffers = optimizer.number("buffer_count", static_cast<double>(o.buffers.value_or(4)));
  zero.parameter_buffer_size = param.number("buffer_size", o.buffer_bytes ? static_cast<double>(*o.buffer_bytes) / s.parameter_bytes : 1e8);
  zero.most_in_memory = param.number("max_in_cpu", 1e9);
  zero.pipelined_swap = optimizer.flag("pipeline_read", false) || optimizer.flag("pipeline_write", false);
  zero.super_offload = optimizer.flag("super_offload", false);
}

void set_formats(Setup& s, const nlohmann::json& config) {
  auto& zero = s.zero;
  const Keys top(config), bf16(object_at(config, "bf16")), fp16(object_at(config, "fp16"));
  // engine.py communication_data_type and get_data_types: the model's own unless stated
  zero.communication_bytes = top.bytes("communication_data_type", s.parameter_bytes);
  zero.accumulation_bytes = Keys(object_at(config, "data_types")).bytes("grad_accum_dtype", s.gradient_bytes);
  const bool low = bf16.flag("bf16_master_weights_and_grads", false) || fp16.flag("fp16_master_weights_and_grads", false);
  if (low && s.master_bytes > 0) s.master_bytes = 2;
  zero.update_bytes = s.master_bytes > 0 ? s.master_bytes : s.parameter_bytes;
  if (low && bf16.flag("bf16_optimizer_states", false)) s.state_bytes = 2;
  if (low && !bf16.flag("bf16_optimizer_states", false) && !s.offload_optimizer)
    throw Error("conflict", "/plan/deepspeed/bf16/bf16_master_weights_and_grads", "16-bit master weights with fp32 states need an optimizer on the CPU (DeepSpeedCPUAdam)",
                "set offload_optimizer to cpu, or bf16_optimizer_states true");
  zero.immediate_update = bf16.flag("immediate_grad_update", false);
}

}  // namespace

int deepspeed_release(std::string_view version) {
  int parts[3] = {0, 0, 0}, n = 0;
  bool digits = false;
  for (const char c : version) {
    if (std::isdigit(static_cast<unsigned char>(c))) {
      if (parts[n] < 1000) parts[n] = parts[n] * 10 + (c - '0');
      digits = true;
    } else if (digits) {
      if (c != '.' || ++n > 2) break;
      digits = false;
    }
  }
  const int number = parts[0] * 10000 + parts[1] * 100 + std::min(parts[2], 99);
  return number > 0 && parts[0] < 10 ? number : kNewest;
}

void set_zero(Setup& s) {
  if (s.engine != Engine::kZero) return;
  const auto& section = object_at(s.plan.deepspeed, "zero_optimization");
  const Keys z(section);
  auto& zero = s.zero;
  zero.release = s.colossal ? kNewest : deepspeed_release(s.job.framework.version);
  s.unit_blocks = 1;                    // the unit of a gather is a module
  const double h = static_cast<double>(s.model.hidden);
  // transformers/integrations/deepspeed.py trainer_config_finalize fills "auto" from the hidden size; recipes for the Trainer and
  // accelerate say "auto", so where nothing is stated that is taken
  const bool trainer = s.trainer == "transformers" || s.trainer == "accelerate" || s.trainer == "axolotl";
  const bool unstated = trainer && section.empty();
  if (unstated && s.stage > 0 && !s.colossal) s.assumed.emplace_back("deepspeed.zero_optimization buckets, prefetch and persistence=auto (from the hidden size)");
  const auto from_hidden = [&](const char* key, double automatic, double fallback) { return z.number(key, z.is_auto(key) || unstated ? automatic : fallback); };
  zero.reduce_bucket = std::max(1.0, from_hidden("reduce_bucket_size", h * h, s.colossal ? 12.0 * 1048576 : 5e8));
  zero.prefetch_bucket = from_hidden("stage3_prefetch_bucket_size", std::floor(0.9 * h * h), 5e7);
  zero.persistence = from_hidden("stage3_param_persistence_threshold", 10 * h, 1e5);
  zero.allgather_bucket = z.number("allgather_bucket_size", 5e8);
  zero.max_live = z.number("stage3_max_live_parameters", 1e9);
  zero.max_reuse = z.number("stage3_max_reuse_distance", 1e9);
  zero.model_persistence = z.number("stage3_model_persistence_threshold", 1e30);
  zero.sub_group = std::max(1.0, z.number("sub_group_size", 1e9));
  zero.overlap = z.flag("overlap_comm", s.stage == 3);
  zero.contiguous = z.flag("contiguous_gradients", true);
  zero.reduce_scatter = z.flag("reduce_scatter", true);
  zero.gathers_one_by_one = z.flag("stage3_allgather_sequential", false);
  if (zero.gathers_one_by_one) zero.prefetch_bucket = 1;     // engine.py _configure_zero_optimizer
  zero.gathers_by_all_reduce = z.flag("stage3_use_all_reduce_for_fetch_params", false);
  // partition_parameters.py: before 0.19.4 only models made under zero.Init get it, as from_pretrained makes them for the Trainer
  zero.weights_saved_whole = !z.flag("memory_efficient_linear", true);
  if (s.stage == 3 && !s.colossal && zero.release < 1904 && !zero.weights_saved_whole && s.checkpoint == Setup::Checkpoint::kNone)
    s.assumed.emplace_back("deepspeed: the model is made under zero.Init (made outside of it, it needs what memory_efficient_linear=false needs)");
  zero.granularity = z.number("stage3_module_granularity_threshold", 0);
  zero.consolidates_on_save = s.stage == 3 && (z.flag("stage3_gather_16bit_weights_on_model_save", false) || z.flag("stage3_gather_fp16_weights_on_model_save", false));
  if (const auto* leaf = z.find("leaf_module"); leaf && leaf->is_object())
    if (const auto classes = leaf->find("classes"); classes != leaf->end() && classes->is_array())
      for (const auto& c : *classes)
        if (c.is_string()) zero.leaf_classes.push_back(c.get<std::string>());
  zero.second_shard = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(z.number("zero_hpz_partition_size", 1), 1e6)));
  zero.quantized_gathers = z.flag("zero_quantized_weights", false);
  zero.quantized_frozen = z.flag("zero_quantized_nontrainable_weights", false);
  zero.quantized_gradients = z.flag("zero_quantized_gradients", false);
  zero.loco = z.find("zeropp_loco_param") != nullptr;
  zero.mics = static_cast<std::int64_t>(std::min(z.number("mics_shard_size", 0), 1e6));
  const Keys checkpointing(object_at(s.plan.deepspeed, "activation_checkpointing"));
  zero.partitions_activations = checkpointing.flag("partition_activations", false);
  zero.activations_on_cpu = checkpointing.flag("cpu_checkpointing", false);
  set_formats(s, s.plan.deepspeed);
  set_offload_keys(s, section);

  // A plan's own schedule counts where DeepSpeed's keys are silent.
  const auto& sched = s.plan.schedule;
  if (sched.reduce_bucket_bytes && !z.find("reduce_bucket_size")) zero.reduce_bucket = std::max(1.0, static_cast<double>(*sched.reduce_bucket_bytes) / s.gradient_bytes);
  if (sched.prefetch_bytes && !z.find("stage3_prefetch_bucket_size")) zero.prefetch_bucket = static_cast<double>(*sched.prefetch_bytes) / s.compute_bytes;
  if (sched.gather_bucket_bytes && !z.find("allgather_bucket_size")) zero.allgather_bucket = static_cast<double>(*sched.gather_bucket_bytes) / s.compute_bytes;
  if (sched.keep_resident_below && !z.find("stage3_param_persistence_threshold")) zero.persistence = static_cast<double>(*sched.keep_resident_below);

  if (s.job.framework.name == "deepspeed") refuse(s, z);
  if (zero.mics > 0) s.shard = zero.mics;
  // deepspeed.checkpointing is called by Megatron-DeepSpeed and by code of its own kind; the Trainer checkpoints with torch's function
  if (zero.activations_on_cpu) {
    if (trainer) s.assumed.emplace_back("deepspeed.activation_checkpointing has no effect (the Trainer checkpoints with torch.utils.checkpoint)");
    else s.offload_activations = s.checkpoint != Setup::Checkpoint::kNone;
  }
}

}  // namespace shardfit::memory
