#include "selector/time/engines.hpp"

#include <string>

namespace shardfit::timing {
namespace {

// Fitted on tests/truth/time_visible.jsonl, with the spread over its sources as check. DeepSpeed's launch floor under
// stage 3 is nine hooked modules a block at 0.35 ms (module granularity of its parameter coordinator). Rows for
// shardfit on GPUs have no measurement yet: it gathers a block ahead on a stream of its own like FSDP2 and launches
// eager kernels.
constexpr EngineRow kRows[] = {
    {Engine::kShardfit, 3.0, 0.51e-3, 0.25e-3, 0.2e-3, 1.19, 0.25},
    {Engine::kFsdp2, 3.006, 0.515e-3, 0.25e-3, 0.2e-3, 1.191, 0.25},
    {Engine::kFsdp1, 1.533, 0.515e-3, 0.25e-3, 0.2e-3, 1.191, 0.25},
    {Engine::kDeepspeed, 1.135, 0.515e-3, 0.25e-3, 9 * 0.349e-3, 1.191, 1.691},
    {Engine::kDdp, 1.694, 0.515e-3, 0.25e-3, 0.2e-3, 1.191, 0.25},
    {Engine::kMegatron, 3.616, 0.3e-3, 0.3e-3, 0.2e-3, 0.636, 0.15},
    {Engine::kOther, 2.408, 0.515e-3, 0.25e-3, 0.2e-3, 1.191, 0.25},
};

struct LeftoverRow {
  std::string_view engine;  // framework, or its label, or framework/trainer
  Generation generation;
  double factor;
};
constexpr LeftoverRow kLeftovers[] = {
    {"colossalai", Generation::kHopper, 0.976},
    {"ddp", Generation::kAda, 0.970},
    {"ddp", Generation::kAmpere, 0.989},
    {"ddp", Generation::kGa10x, 0.991},
    {"ddp", Generation::kHopper, 0.968},
    {"ddp", Generation::kVolta, 0.936},
    {"ddp/transformers", Generation::kAmpere, 1.085},
    {"deepspeed", Generation::kAda, 0.994},
    {"deepspeed", Generation::kAmpere, 1.021},
    {"deepspeed", Generation::kHopper, 1.031},
    {"deepspeed", Generation::kVolta, 1.153},
    {"fsdp1", Generation::kAda, 1.008},
    {"fsdp1", Generation::kAmpere, 1.018},
    {"fsdp1", Generation::kGa10x, 1.025},
    {"fsdp1", Generation::kHopper, 1.024},
    {"fsdp2", Generation::kAmpere, 1.029},
    {"fsdp2", Generation::kHopper, 1.101},
    {"lohan", Generation::kAda, 1.019},
    {"megatron", Generation::kAmpere, 1.054},
    {"megatron", Generation::kBlackwell, 1.044},
    {"megatron", Generation::kHopper, 1.026},
    {"torchao", Generation::kAda, 1.045},
};

}  // namespace

const EngineRow& engine_row(Engine engine) {
  for (const EngineRow& row : kRows)
    if (row.engine == engine) return row;
  return kRows[0];
}

std::string_view engine_name(Engine engine) {
  switch (engine) {
    case Engine::kShardfit: return "shardfit";
    case Engine::kFsdp1: return "fsdp1";
    case Engine::kFsdp2: return "fsdp2";
    case Engine::kDeepspeed: return "deepspeed";
    case Engine::kDdp: return "ddp";
    case Engine::kMegatron: return "megatron";
    case Engine::kOther: return "other";
  }
  return "other";
}

Leftover leftover(const Work& work, Generation generation) {
  const bool plain_transformers = work.engine == Engine::kDdp && work.trainer == "transformers";
  const std::string_view name = !work.label.empty()  ? std::string_view(work.label)
                                : plain_transformers ? std::string_view("ddp/transformers")
                                                     : engine_name(work.engine);
  for (const LeftoverRow& row : kLeftovers)
    if (row.generation == generation && row.engine == name) return {row.factor, true};
  return {};
}

}  // namespace shardfit::timing
