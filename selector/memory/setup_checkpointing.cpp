#include "selector/memory/setup_parts.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::memory {

using job::DType;

void set_checkpointing(Setup& s) {
  const auto& c = s.plan.checkpointing;
  using C = Setup::Checkpoint;
  if (c.kind == "full") s.checkpoint = c.every > 1 ? C::kEvery : C::kFull;
  else if (c.kind == "selective_op") s.checkpoint = C::kSelectiveOp;
  else if (c.kind == "selective") s.checkpoint = c.every > 1 ? C::kEvery : C::kSelectiveModules;
  else s.checkpoint = c.every > 1 ? C::kEvery : C::kNone;
  s.policy_keeps_every = c.save && *c.save == "all_compute";
  s.checkpoint_every = std::max<std::int64_t>(1, c.every);
  s.recomputed_modules = c.modules;
  if (s.checkpoint == C::kSelectiveModules && c.modules.empty()) {
    s.recomputed_modules = {"core_attn"};
    s.assumed.emplace_back("activation_checkpointing.modules=[\"core_attn\"] (Megatron's selective recomputation)");
  }
  s.reentrant = c.reentrant.value_or(false);
  if (s.trainer == "torchtitan") {
    const auto& compute = s.job.precision.compute;
    // _save_list of parallelize_llama.py: aten.abs from 6b03ffa32 to 5940ddeb5, without reduce_scatter from 7090a7b60 to 88d8ab372
    s.policy_keeps_abs = compute && *compute == DType::kFp8 && !s.compiled && s.checkpoint == C::kSelectiveOp && s.age >= 20241226 && s.age < 20250206;
    s.policy_keeps_reduce_scatter = !(s.age >= 20250403 && s.age < 20250421);
    // neither aten._grouped_mm nor bmm of the experts is in the list; all-to-all since c4e229115
    s.policy_keeps_experts = false;
    s.policy_keeps_exchange = s.age >= 20250906;
    // Blackwell takes cuDNN's attention, which the list knows since b39377f9f
    s.policy_keeps_attention = !(s.device.compute_capability_number() >= 10 && s.age < 20251201);
  }
}

}  // namespace shardfit::memory
