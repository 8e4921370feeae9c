// FSDP1 against what torch really allocates on rank 0 of four (goldens/fsdp1.jsonl, made by goldens/fsdp1.py).
#include <gtest/gtest.h>

#include "tests/selector/memory/peaks.hpp"

namespace shardfit::memory {
namespace {

TEST(Fsdp1, PeaksOfEachOptionAreThoseOfTorch) {
  const auto cases = golden_cases("fsdp1.jsonl");
  ASSERT_GE(cases.size(), 20u);
  // what a re-entrant recomputation under PEFT's wrapping keeps is over-estimated by a shard of a block
  for (const auto& c : cases) expect_peaks(c, c.name == "lora_peft_wrap_ckpt" ? 0.055 : 0.025);
}

// A unit in which only some parts are trained has a gradient as large as all of it.
TEST(Fsdp1, FrozenPartsOfAFlatParameterHaveAGradientToo) {
  auto c = golden_cases("fsdp1.jsonl").front();
  c.plan["activation_checkpointing"] = "full";
  const auto backward = [&](const nlohmann::json& method) {
    c.job["method"] = method;
    return replayed_peaks(c).at("backward");
  };
  const double full = backward("full");
  const double gates = backward({{"kind", "partial"}, {"trainable", {"model.layers.*.mlp.gate_proj"}}});
  const double norms = backward({{"kind", "partial"}, {"trainable", {"model.norm"}}});
  EXPECT_LT(gates, full);
  const double block = (2.0 * 2048 * 2048 + 2.0 * 256 * 2048 + 3.0 * 2048 * 5632) * 2;   // bytes
  EXPECT_GT(gates - norms, 1.5 * block);   // zeros and the flat gradient of one block at least
}

}  // namespace
}  // namespace shardfit::memory
