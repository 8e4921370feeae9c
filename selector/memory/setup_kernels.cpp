#include "selector/memory/setup_parts.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/hugging_face.hpp"

namespace shardfit::memory {
namespace {

bool has_experts(const model::Model& model) {
  for (const auto& block : model.blocks)
    for (const auto& op : block.ops)
      if (op.kind == model::OpKind::kExperts) return true;
  return false;
}

}  // namespace

void set_kernels(Setup& s) {
  const auto& j = s.job;
  // torchtitan's graph_trainer (from c8d2d7181 on) traces forward, loss and backward and runs the operators as they are; from 73680eedb
  // on as a CUDA graph where no grouped matmul forbids it (cudagraph.py, is_cudagraph_compatible: before Blackwell).
  const bool traced = s.trainer == "torchtitan" && j.compile == "graph" && s.age >= 20260310;
  if (traced) s.graph = s.age >= 20260427 && !(has_experts(s.model) && s.device.compute_capability_number() < 10) ? Setup::Graph::kCudaGraph : Setup::Graph::kOneStream;
  // Another traced graph that is run without fusing keeps what eager code keeps, unless a policy on the graph drops it.
  s.compiled = j.compile != "none" && !traced && !(j.compile == "graph" && s.plan.checkpointing.kind == "none");
  s.dialect = dialect_of(j.framework.name, s.trainer, j.framework.trainer_version);
  if (traced) s.dialect.policy_keeps_last = false;   // a graph lets go of what it saved and nothing needs
  // nn.RMSNorm is one kernel (aten::_fused_rms_norm) from torch 2.9 on
  if (s.dialect.norm == NormStyle::kComposite && s.torch_date >= 20250815) s.dialect.norm = NormStyle::kFused;
  s.eager_attention = j.attention && *j.attention == "eager";
  const bool kernels_of_package = s.trainer == "transformers" || s.trainer == "accelerate" || s.trainer == "axolotl" || s.trainer == "llama-recipes" || s.trainer == "fsdp_qlora" || s.trainer.empty();
  if (s.engine != Engine::kMegatron && kernels_of_package) {
    // flash_attn takes grouped k and v; SDPA's callers repeat them first
    const bool flash = j.attention && j.attention->rfind("flash", 0) == 0;
    s.dialect.repeats_kv = !flash;
    // transformers/integrations/sdpa_attention.py: .contiguous() of q, k and v from 4.48 to 4.55; enable_gqa instead of repeat_kv since
    // 4.54, where no mask is given (packed or unpadded sequences)
    if (s.trainer == "transformers" || s.trainer == "accelerate" || s.trainer == "axolotl") {
      s.dialect.contiguous_heads = !flash && s.age >= 448 && s.age < 456;
      if (s.age >= 454 && !s.eager_attention) s.dialect.repeats_kv = false;
    }
    s.dialect.python_gelu = s.trainer == "transformers";
    s.dialect.flash_package = flash;
    set_hugging_face(s);
  }
  if (j.fused_kernels) {
    for (const auto& k : *j.fused_kernels) {
      if (k == "swiglu") s.dialect.fused_mlp = true, s.dialect.mlp_in_place = s.engine != Engine::kMegatron;
      if (k == "rms_norm") s.dialect.norm = NormStyle::kFused;
      if (k == "rope") s.dialect.rope_in_place = true;
    }
  }
  if (s.engine == Engine::kOwn) {
    s.dialect.norm = NormStyle::kFused;
    s.dialect.rope_copies = s.dialect.rope_temporary = 0;
    s.dialect.fused_mlp = true;
  }
  if (s.compiled) {                     // inductor fuses the point-wise work
    s.dialect.norm = NormStyle::kFused;
    s.dialect.rope_copies = s.dialect.rope_temporary = 0;
    s.dialect.mlp_in_place = false;
    s.dialect.fused_mlp = true;
    s.dialect.policy_keeps_last = false;
  }
}

}  // namespace shardfit::memory
