#include "selector/memory/host_terms.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"

namespace shardfit::memory {
namespace {

using job::Place;
using Where = HostTerm::Where;

constexpr double kGib = 1073741824.0;
constexpr double kMost = 4.0e18;  // sums are cut here, well inside 64 bits

// Elements and bytes of one rank.
struct Share {
  double trained = 0;        // elements whose optimizer state this rank holds, with padding
  double resting = 0;        // bytes of parameters at rest
  double frozen = 0;         // of them, bytes of what is not trained
  double largest = 0;        // elements of the largest trained tensor
  double largest_any = 0;    // of the largest tensor
};

Share share_of(const Setup& s, const ModelSizes& sizes) {
  Share share;
  const auto add = [&](const UnitSizes& u, double part) {
    share.trained += part * static_cast<double>(s.stage >= 1 ? u.trained_shard : u.trained);
    share.resting += part * static_cast<double>(s.stage == 3 ? u.rest_shard_bytes : u.rest_bytes);
    const double frozen = static_cast<double>(u.elements + u.adapters - u.trained) / std::max(1.0, static_cast<double>(u.elements + u.adapters));
    share.frozen += part * frozen * static_cast<double>(s.stage == 3 ? u.rest_shard_bytes : u.rest_bytes);
    share.largest = std::max(share.largest, static_cast<double>(u.largest));
  };
  for (auto k : sizes.order) add(sizes.blocks[static_cast<std::size_t>(k)], 1.0 / static_cast<double>(s.pp));
  add(sizes.embedding, 1.0 / static_cast<double>(s.pp));
  add(sizes.head, 1.0 / static_cast<double>(s.pp));
  for (const auto& b : s.model.blocks)
    for (const auto& p : b.parameters) share.largest_any = std::max(share.largest_any, static_cast<double>(p.elements()));
  for (const auto* b : {&s.model.embedding, &s.model.head})
    for (const auto& p : b->parameters) share.largest_any = std::max(share.largest_any, static_cast<double>(p.elements()));
  return share;
}

class Terms {
 public:
  explicit Terms(std::int64_t ranks) : ranks_(static_cast<double>(std::max<std::int64_t>(1, ranks))) {}

  // `bytes` of one rank, in `pieces` allocations.
  void add(std::string name, double bytes, Where where, double pieces = 1) {
    if (!(bytes > 0)) return;
    const auto whole = [](double b) { return static_cast<std::int64_t>(std::min(std::ceil(b), kMost)); };
    list_.push_back({std::move(name), whole(bytes * ranks_), whole(bytes / std::max(1.0, pieces)), where});
  }
  std::vector<HostTerm> take() { return std::move(list_); }

 private:
  double ranks_;
  std::vector<HostTerm> list_;
};

Where pinned_if(bool pin) { return pin ? Where::kPinned : Where::kPageable; }

// A key under plan.deepspeed.zero_optimization.SECTION, else `fallback`.
const nlohmann::json* zero_key(const Setup& s, const char* section, const char* key) {
  const nlohmann::json* at = &s.plan.deepspeed;
  for (const char* step : {"zero_optimization", section, key}) {
    if (!at->is_object()) return nullptr;
    const auto it = at->find(step);
    if (it == at->end() || it->is_null()) return nullptr;
    at = &*it;
  }
  return at;
}
// partitioned_param_swapper.py get_buffer asserts that a partition fits a buffer.
void refuse_small_buffers(const Setup& s, const Share& share) {
  const double part = std::ceil(share.largest_any / static_cast<double>(std::max<std::int64_t>(1, s.shard)));
  if (part <= s.zero.parameter_buffer_size || !zero_key(s, "offload_param", "device")) return;
  throw Error("conflict", "/plan/deepspeed/zero_optimization/offload_param/buffer_size",
              fmt::format("a buffer holds {:.0f} elements, a rank's part of the largest parameter has {:.0f}", s.zero.parameter_buffer_size, part),
              fmt::format("set buffer_size to at least {:.0f}", part));
}

double sub_group(const Setup& s) { return std::clamp(s.zero.sub_group > 0 ? s.zero.sub_group : 1e9, 1.0, 1e18); }

// deepspeed/runtime/zero/stage3.py of 0.19.8, each rule also checked against a run of it (tests/selector/memory/deepspeed_test.cpp).
void zero3(Terms& terms, const Setup& s, const Share& share) {
  const auto& o = s.plan.offload;
  const auto& zero = s.zero;
  const double master = s.master_bytes > 0 ? s.master_bytes : s.parameter_bytes;  // offloaded, it is a copy even in fp32
  const double update = s.master_bytes > 0 ? zero.update_bytes : master;
  const double group = sub_group(s);
  const Where pinned = pinned_if(zero.pins_optimizer);
  if (o.optimizer != Place::kNone)       // _setup_for_real_optimizer: grad_partitions_flat_buffer lies where the optimizer runs
    terms.add("gradients, 16 bit", share.trained * zero.accumulation_bytes, pinned);
  if (o.optimizer == Place::kCpu) {
    const double mine = share.trained * optimizer_share_off_device(s, share.trained);
    const double pieces = std::max(1.0, std::ceil(mine / group));
    terms.add("master weights", mine * master, Where::kPageable, pieces);               // _create_fp32_partitions
    terms.add("gradients of the update", mine * update, pinned, pieces);                // initialize_optimizer_states
    terms.add("optimizer states", mine * s.states * s.state_bytes, Where::kPageable, pieces * s.states);
    // superoffload_utils.py _allocate_worker_grad_buffer: the worker process has a buffer for one sub-group's gradient
    if (zero.super_offload) terms.add("SuperOffload's gradient buffer", std::min(group, mine) * 4, pinned);
  } else if (o.optimizer == Place::kNvme) {
    // optimizer_utils.py: parameter, gradient and states of every sub-group are files; buffer_count buffers of the largest one are
    // locked (SwapBufferManager). A pipelined swapper (pipeline_read, pipeline_write) takes its buffers from the same ones.
    terms.add("master weights", share.trained * master, Where::kNvme);
    terms.add("gradients of the update", share.trained * update, Where::kNvme);
    terms.add("optimizer states", share.trained * s.states * s.state_bytes, Where::kNvme);
    terms.add("optimizer swap buffers", zero.optimizer_buffers * std::min(group, share.trained) * master, Where::kPinned, zero.optimizer_buffers);
  }
  if (o.parameters == Place::kCpu) {
    // _create_param_groups_fp16_flat_cpu_memory: trained ones are pinned whatever pin_memory says; frozen ones stay as zero.Init made
    // them (partition_parameters.py _partition_param)
    terms.add("parameters", share.resting - share.frozen, Where::kPinned);
    terms.add("frozen parameters", share.frozen, pinned_if(zero.pins_parameters));
  } else if (o.parameters == Place::kNvme) {
    const double width = s.parameter_bytes;
    const double in_cpu = std::min(share.resting, width * zero.most_in_memory);
    if (in_cpu < share.resting) refuse_small_buffers(s, share);
    terms.add("parameters kept in memory", in_cpu, Where::kPinned);
    terms.add("parameters", share.resting - in_cpu, Where::kNvme);
    // partitioned_param_swapper.py _configure_aio: one locked tensor, whether or not anything is swapped
    terms.add("parameter swap buffers", zero.parameter_buffers * zero.parameter_buffer_size * width, Where::kPinned);
  }
  // ZeRO++ hpZ: the second shard lies where the first does
  if (zero.second_shard > 1 && s.shard > 1 && o.parameters != Place::kNone)
    terms.add("second shard of the parameters", share.resting * static_cast<double>(s.shard) / static_cast<double>(zero.second_shard), pinned_if(zero.pins_parameters));
}

// stage_1_and_2.py of 0.19.8, checked likewise. Before 0.10.1 pin_memory was not asked; the master copy is pinned since 0.14.1.
void zero12(Terms& terms, const Setup& s, const Share& share) {
  if (s.plan.offload.optimizer == Place::kNone) return;
  const auto& zero = s.zero;
  const Where pinned = pinned_if(zero.pins_optimizer || zero.release < 1001);
  const double master = s.master_bytes > 0 ? s.master_bytes : s.parameter_bytes;
  terms.add("master weights", share.trained * master, zero.release >= 1401 ? pinned : Where::kPageable);
  terms.add("parameters on their way back", share.trained * s.parameter_bytes, pinned);
  terms.add("gradients of the update", share.trained * (s.master_bytes > 0 ? zero.update_bytes : master), pinned);
  terms.add("optimizer states", share.trained * s.states * s.state_bytes, Where::kPageable, s.states);
  terms.add("gradient being copied", share.largest * s.parameter_bytes, pinned);
  // accumulated_grads_in_cpu; with 16-bit master weights the update's own gradient serves
  if (s.accumulation > 1 && zero.update_bytes >= 4) terms.add("accumulated gradients, 16 bit", share.trained * s.parameter_bytes, pinned);
}

void fsdp(Terms& terms, const Setup& s, const Share& share) {
  const auto& o = s.plan.offload;
  if (o.parameters == Place::kNone) {
    if (o.optimizer != Place::kNone || o.gradients != Place::kNone)
      throw Error("unsupported_combination", o.optimizer != Place::kNone ? "/plan/offload/optimizer" : "/plan/offload/gradients",
                  fmt::format("{} offloads parameters, gradients and optimizer states together or not at all", s.job.framework.name),
                  "set offload.parameters to \"cpu\" as well, or choose framework deepspeed or shardfit");
    return;
  }
  const Where pinned = pinned_if(o.pin.value_or(true));
  const double units = 1.0 + std::max<double>(1.0, static_cast<double>(s.model.layers) / static_cast<double>(s.unit_blocks));
  terms.add("parameters", share.resting, pinned, units);
  terms.add("gradients", share.trained * (s.adapters.any ? s.adapters.bytes : s.gradient_bytes), pinned, units);
  terms.add("optimizer states", share.trained * s.states * s.state_bytes, Where::kPageable, units * s.states);
}

// Our runtime, and engines known by nothing but what is offloaded: each part where the plan puts it, in one piece a rank. With NVMe,
// `buffers` tiles are read ahead and written behind; a tile holds everything the update needs of `tile_elements` elements.
void plain(Terms& terms, const Setup& s, const Share& share) {
  const auto& o = s.plan.offload;
  const bool pin = o.pin.value_or(true);
  const auto place = [&](Place where, const char* name, double bytes) {
    if (where == Place::kCpu) terms.add(name, bytes, pinned_if(pin));
    else if (where == Place::kNvme) terms.add(name, bytes, Where::kNvme);
  };
  const double fraction = std::clamp(o.optimizer_fraction, 0.0, 1.0);
  const double gradient = s.adapters.any ? s.adapters.bytes : s.gradient_bytes;
  const double master = s.master_bytes > 0 ? s.master_bytes : o.parameters == Place::kNone && s.engine != Engine::kOwn ? s.parameter_bytes : 0;
  place(o.optimizer, "master weights", share.trained * fraction * master);
  place(o.optimizer, "optimizer states", share.trained * fraction * s.states * s.state_bytes);
  if (o.optimizer != Place::kNone) terms.add("gradients", share.trained * fraction * gradient, pinned_if(pin));
  else place(o.gradients, "gradients", share.trained * gradient);
  place(o.parameters, "parameters", share.resting);
  const double update = master + s.states * s.state_bytes + gradient;
  const double count = static_cast<double>(o.buffers.value_or(4));
  if (o.optimizer == Place::kNvme) {
    const double tile = o.buffer_bytes ? static_cast<double>(*o.buffer_bytes)
                                       : std::min(static_cast<double>(o.tile_elements.value_or(1 << 20)), std::max(1.0, share.trained)) * update;
    terms.add("optimizer swap buffers", count * tile, pinned_if(pin), count);
  }
  if (o.parameters == Place::kNvme) {
    const double unit = o.buffer_bytes ? static_cast<double>(*o.buffer_bytes) : share.resting / std::max<double>(1.0, static_cast<double>(s.model.layers));
    terms.add("parameter swap buffers", count * unit, pinned_if(pin), count);
  }
}

void refuse_nvme(const Setup& s) {
  const auto& o = s.plan.offload;
  if (s.engine == Engine::kOwn || s.engine == Engine::kZero) return;  // ZeRO-1 and 2 take "nvme" for "cpu" (stage_1_and_2.py)
  for (const auto& [place, key] : {std::pair{o.parameters, "parameters"}, std::pair{o.gradients, "gradients"}, std::pair{o.optimizer, "optimizer"}})
    if (place == Place::kNvme)
      throw Error("unsupported_combination", std::string("/plan/offload/") + key, fmt::format("{} cannot offload to NVMe", s.job.framework.name),
                  "offload to \"cpu\", or choose framework deepspeed with stage 3");
}

}  // namespace

std::vector<HostTerm> host_terms(const Setup& s, const ModelSizes& sizes) {
  if (!s.plan.offload.any()) return {};
  refuse_nvme(s);
  const Share share = share_of(s, sizes);
  Terms terms(s.plan.gpus_per_node);
  const bool deepspeed = s.engine == Engine::kZero && s.job.framework.name == "deepspeed";
  if (deepspeed && s.stage == 3) zero3(terms, s, share);
  else if (deepspeed) zero12(terms, s, share);
  else if (s.engine == Engine::kFsdp1 || s.engine == Engine::kFsdp2) fsdp(terms, s, share);
  else plain(terms, s, share);
  if (s.plan.offload.activations != Place::kNone) {
    const double inputs = static_cast<double>(sizes.order.size()) / static_cast<double>(s.pp) * static_cast<double>(s.tokens) *
                          static_cast<double>(s.model.hidden) * s.residual_bytes;
    terms.add("checkpointed block inputs", inputs,
              s.plan.offload.activations == Place::kNvme ? Where::kNvme : pinned_if(s.plan.offload.pin.value_or(true)), static_cast<double>(sizes.order.size()));
  }
  return terms.take();
}

double optimizer_share_off_device(const Setup& s, double trained) {
  if (s.plan.offload.optimizer == Place::kNone || trained <= 0) return s.plan.offload.optimizer == Place::kNone ? 0 : 1;
  const double fraction = std::clamp(s.plan.offload.optimizer_fraction, 0.0, 1.0);
  if (s.engine != Engine::kZero || s.stage != 3 || s.plan.offload.optimizer == Place::kNvme) return s.engine == Engine::kZero ? 1 : fraction;
  const double groups = std::max(1.0, std::ceil(trained / sub_group(s)));
  return std::max(0.0, trained - std::floor((1 - fraction) * groups) * sub_group(s)) / trained;
}

std::int64_t host_base_bytes(const Setup& s) {
  const double each = s.engine == Engine::kOwn ? 0.6 * kGib : 2.5 * kGib;
  return static_cast<std::int64_t>(each * static_cast<double>(std::max<std::int64_t>(1, s.plan.gpus_per_node)));
}

std::int64_t pinned_rounding_bytes(const Setup& s, const std::vector<HostTerm>& terms) {
  if (s.engine == Engine::kOwn) return 0;
  double extra = 0;
  for (const HostTerm& t : terms) {
    if (t.where != Where::kPinned || t.allocation <= 0) continue;
    const double rounded = std::exp2(std::ceil(std::log2(static_cast<double>(t.allocation))));
    extra += static_cast<double>(t.bytes) * (rounded / static_cast<double>(t.allocation) - 1);
  }
  return static_cast<std::int64_t>(std::min(extra, kMost));
}

}  // namespace shardfit::memory
