#include "selector/memory/setup_parts.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::memory {

using job::DType;
using job::Place;

void set_optimizer(Setup& s) {
  const auto& o = s.job.optimizer;
  const bool low_bit = o.states && (*o.states == DType::kInt8 || *o.states == DType::kInt4);
  if (o.name == "sgd" || o.name == "lion" || o.name == "muon") s.states = 1;
  if (o.name == "sgd") {
    // TrainingArguments(optim="sgd") gives torch.optim.SGD without momentum: no state
    if (s.trainer == "transformers") s.states = 0;
    s.assumed.push_back(s.states == 0 ? "optimizer without momentum (transformers' sgd)" : "optimizer with momentum (one state a parameter)");
  }
  if (o.name == "galore_adamw") {
    s.galore_rank = std::max<std::int64_t>(1, s.model.hidden / 4);
    s.assumed.push_back(fmt::format("GaLore rank {} (a quarter of the hidden size, as in its paper)", s.galore_rank));
  }
  s.in_backward = o.in_backward;
  if (o.states) {
    s.state_bytes = job::bytes_of(*o.states);
    if (*o.states == DType::kInt8) s.state_bytes += 4.0 / 256;    // one scale a block of 256
    if (*o.states == DType::kInt4) s.state_bytes += 4.0 / 128;
  } else {
    s.state_bytes = s.adapters.any ? s.adapters.bytes : s.master_bytes > 0 ? 4 : s.parameter_bytes;
    s.assumed.push_back(fmt::format("optimizer.states={} (format of the trained weights)", s.state_bytes == 4 ? "fp32" : "bf16"));
  }
  s.offload_optimizer = s.plan.offload.optimizer != Place::kNone;
  const bool cpu = o.implementation && *o.implementation == "cpu";
  s.states_on_device = !s.offload_optimizer && !cpu && !o.paged;
  if (o.implementation) {
    s.step = cpu ? Setup::Step::kCpu : *o.implementation == "fused" ? Setup::Step::kFused : *o.implementation == "single" ? Setup::Step::kSingle : Setup::Step::kForeach;
  } else {
    const auto& fsdp = s.plan.fsdp;
    const auto orig = fsdp.find("use_orig_params");
    if (low_bit || o.paged) s.step = Setup::Step::kFused;
    else if (s.engine == Engine::kFsdp1 && orig != fsdp.end() && orig->is_boolean() && !orig->get<bool>() && s.torch_date < 20231004) s.step = Setup::Step::kSingle;   // FlatParameter makes plain Parameters since 2.1
    else if (s.engine == Engine::kMegatron || s.engine == Engine::kZero || s.engine == Engine::kOwn) s.step = Setup::Step::kFused;
    // torch/optim/optimizer.py _default_to_fused_or_foreach: a DTensor is not a type that foreach is chosen for by itself
    else if (s.engine == Engine::kFsdp2 && s.stage == 3 && s.shard > 1 && s.trainer != "torchtitan") s.step = Setup::Step::kSingle;
    else s.step = s.torch_date < 20230315 ? Setup::Step::kSingle : Setup::Step::kForeach;   // foreach is the default since torch 2.0
    static constexpr const char* kNames[] = {"fused", "foreach", "single", "cpu"};
    s.assumed.push_back(fmt::format("optimizer.implementation={} ({} default)", kNames[static_cast<int>(s.step)], s.job.framework.name));
  }
  if (low_bit && s.step == Setup::Step::kForeach) s.step = Setup::Step::kFused;
  s.low_bit_wide_embeddings = low_bit && s.trainer == "transformers" && s.age >= 452;
  // torchtune takes torchao's where they are not paged; transformers and others take bitsandbytes', whose kernels need no copies
  s.low_bit_step = low_bit && !o.paged && s.states_on_device && (s.trainer == "torchtune" || s.trainer.rfind("torchao", 0) == 0);
}

}  // namespace shardfit::memory
