// Methods of fine-tuning against what transformers and PEFT really allocate (goldens/lora.jsonl, made by goldens/lora.py).
#include <gtest/gtest.h>

#include "tests/selector/memory/peaks.hpp"

namespace shardfit::memory {
namespace {

TEST(Lora, PeaksOfEachMethodAreThoseOfTheRealCode) {
  const auto cases = golden_cases("lora.jsonl");
  ASSERT_GE(cases.size(), 25u);
  for (const auto& c : cases) expect_peaks(c, c.name == "dora_all_ckpt" ? 0.04 : 0.02);   // of DoRA's recomputation a temporary is not modelled
}

}  // namespace
}  // namespace shardfit::memory
