// Optimizers against what torch and transformers really allocate in their step (goldens/optimizer.jsonl, made by goldens/optimizer.py),
// and those that need a library or a card by their sources' sums.
#include <gtest/gtest.h>

#include "selector/memory/rank_replay.hpp"
#include "selector/memory/setup.hpp"
#include "tests/selector/memory/peaks.hpp"

namespace shardfit::memory {
namespace {

TEST(Optimizer, PeaksOfEachStepAreThoseOfTheRealCode) {
  const auto cases = golden_cases("optimizer.jsonl");
  ASSERT_GE(cases.size(), 16u);
  for (const auto& c : cases) expect_peaks(c, 0.01);
}

struct States {
  const char* name;
  nlohmann::json optimizer;
  double bytes;                          // of all states of the small Llama
};

// llama_small.json: six blocks of matrices, a table and a head of 16000 x 2048, thirteen norms
constexpr double kTable = 16000.0 * 2048, kMatrices = 6 * (2.0 * 2048 * 2048 + 2.0 * 256 * 2048 + 3.0 * 2048 * 5632), kNorms = 13.0 * 2048, kAll = 2 * kTable + kMatrices + kNorms;

TEST(Optimizer, StatesAreThoseOfItsSource) {
  auto c = golden_cases("optimizer.jsonl").front();
  c.job["framework"]["trainer_version"] = "4.51.3";
  const double factored = 6 * (2.0 * (2048 + 2048) + 2.0 * (256 + 2048) + 3.0 * (2048 + 5632)) + 2 * (16000 + 2048.0) + kNorms;
  const double galore = 6 * (2 * (2.0 * 512 * 2048 + 512.0 * 2048) + 2 * (2.0 * 256 * 2048) + 3 * (2.0 * 512 * 5632 + 512.0 * 2048)) + 2 * (2 * kTable + kNorms);
  const std::vector<States> all = {
      {"adamw", {{"name", "adamw"}, {"states", "fp32"}}, 8 * kAll},
      {"adamw 16 bit", {{"name", "adamw"}, {"states", "bf16"}}, 4 * kAll},
      {"adamw 8 bit", {{"name", "adamw"}, {"states", "int8"}}, 2 * (1 + 4.0 / 256) * kAll},
      {"adamw 4 bit", {{"name", "adamw"}, {"states", "int4"}}, 2 * (0.5 + 4.0 / 128) * kAll},
      {"paged", {{"name", "adamw"}, {"paged", true}, {"states", "int8"}}, 0},
      {"cpu", {{"name", "adamw"}, {"implementation", "cpu"}}, 0},
      {"lion", {{"name", "lion"}, {"states", "fp32"}}, 4 * kAll},
      {"adafactor", {{"name", "adafactor"}, {"states", "fp32"}}, 4 * factored},
      {"muon", {{"name", "muon"}, {"states", "bf16"}}, 2 * kMatrices + 4 * (2 * kTable + kNorms)},
      {"galore", {{"name", "galore_adamw"}, {"states", "bf16"}}, 2 * galore},
      {"sgd", {{"name", "sgd"}}, 0},
  };
  for (const auto& want : all) {
    c.job["optimizer"] = want.optimizer;
    const auto job = job::parse_job(c.job, kGoldens);
    const auto plan = job::parse_plan(c.plan);
    const auto model = model::load_model(job.model_path());
    const auto setup = make_setup({job, plan, model, hardware::find_device(plan.gpu, "")});
    const ModelSizes sizes = model_sizes(setup);
    double states = 0;
    const auto add = [&](const UnitSizes& u) {
      for (const auto n : u.state_tensors) states += static_cast<double>(n) * setup.state_bytes;
    };
    for (const int kind : sizes.order) add(sizes.blocks[static_cast<std::size_t>(kind)]);
    add(sizes.embedding);
    add(sizes.head);
    EXPECT_NEAR((setup.states_on_device ? states : 0) / kAll, want.bytes / kAll, 1e-6) << want.name;
  }
}

// transformers/trainer.py create_optimizer: 32-bit states for nn.Embedding under bitsandbytes' 8-bit optimizers since 4.52.
TEST(Optimizer, EmbeddingsKeepWideStatesUnderEightBitOptimizers) {
  auto c = golden_cases("optimizer.jsonl").front();
  c.job["optimizer"] = {{"name", "adamw"}, {"states", "int8"}};
  const auto step = [&](const char* version) {
    c.job["framework"]["trainer_version"] = version;
    return replayed_peaks(c).at("backward");
  };
  EXPECT_NEAR((step("4.52.4") - step("4.51.3")) / (2 * (4 - 1 - 4.0 / 256) * kTable), 1, 0.05);
}

}  // namespace
}  // namespace shardfit::memory
