#include "selector/memory/setup_parts.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::memory {

namespace {

double knob(const nlohmann::json& section, const char* key, double fallback) {
  const auto it = section.find(key);
  return it != section.end() && it->is_number() && it->get<double>() >= 0 ? it->get<double>() : fallback;
}

}  // namespace

void set_zero(Setup& s) {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  const auto zo = s.plan.deepspeed.find("zero_optimization");
  const auto& z = zo != s.plan.deepspeed.end() && zo->is_object() ? *zo : kEmpty;
  const double h = static_cast<double>(s.model.hidden);
  const bool automatic = s.trainer == "transformers" || s.trainer == "accelerate";   // the Trainer fills "auto" from the hidden size
  s.reduce_bucket = knob(z, "reduce_bucket_size", s.colossal ? 12.0 * 1048576 : automatic ? h * h : 5e8);
  s.allgather_bucket = knob(z, "allgather_bucket_size", 5e8);
  s.prefetch_bucket = knob(z, "stage3_prefetch_bucket_size", automatic ? 0.9 * h * h : 5e7);
  s.max_live = knob(z, "stage3_max_live_parameters", 1e9);
  s.max_reuse = knob(z, "stage3_max_reuse_distance", 1e9);
  s.persistence = knob(z, "stage3_param_persistence_threshold", automatic ? 10 * h : 1e5);
  s.sub_group = knob(z, "sub_group_size", 1e9);
  const auto overlap = z.find("overlap_comm");
  s.overlap_comm = overlap != z.end() && overlap->is_boolean() ? overlap->get<bool>() : s.stage == 3;
  const auto whole = z.find("stage3_gather_16bit_weights_on_model_save");
  s.consolidates_on_save = s.engine == Engine::kZero && s.stage == 3 && whole != z.end() && whole->is_boolean() && whole->get<bool>();
  const auto contiguous = z.find("contiguous_gradients");
  if (contiguous != z.end() && contiguous->is_boolean()) s.contiguous_gradients = contiguous->get<bool>();
  const auto& sched = s.plan.schedule;
  if (sched.reduce_bucket_bytes) s.reduce_bucket = static_cast<double>(*sched.reduce_bucket_bytes) / s.gradient_bytes;
  if (sched.prefetch_bytes) s.prefetch_bucket = static_cast<double>(*sched.prefetch_bytes) / s.compute_bytes;
  if (sched.gather_bucket_bytes) s.allgather_bucket = static_cast<double>(*sched.gather_bucket_bytes) / s.compute_bytes;
  if (sched.keep_resident_below) s.persistence = static_cast<double>(*sched.keep_resident_below);
}

}  // namespace shardfit::memory
