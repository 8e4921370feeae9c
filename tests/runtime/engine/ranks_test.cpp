// However the work is dealt out - ranks, stages, micro batches, recomputation, prefetch - the training is the same.
#include <cmath>

#include "tests/runtime/engine/fixture.hpp"

namespace shardfit::engine::testing {
namespace {

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> last_weight;
};

Trained train(const RunSetup& setup, int steps = 8) {
  const auto folder = data_folder() / setup.model;
  const auto model = model::load_model(folder.string());
  const auto math = models::math_of(model, 0.0);
  const checkpoint::HuggingFaceWeights weights(folder);
  const auto rows = golden_rows(setup.sequence);
  Trained result;
  on_ranks(setup.ranks, [&](comm::Collective& collective) {
    Engine engine(make_schedule(setup, model), math, collective, 1);
    engine.load(weights);
    for (int step = 1; step <= steps; ++step) {
      const double loss = train_batch(engine, collective, setup, rows, (step - 1) * 4, step);
      const double norm = engine.measure_gradients().norm;
      engine.update({2e-3, 0.9, 0.95, 1e-8, 0.1, 1.0}, step, norm);
      if (collective.rank() == 0) {
        result.losses.push_back(loss);
        result.norms.push_back(norm);
      }
    }
    auto weight = engine.parameter_of(model.embedding_parameter);
    if (collective.rank() == 0) result.last_weight = std::move(weight);
  });
  return result;
}

class HowItIsRun : public ::testing::TestWithParam<RunSetup> {};

TEST_P(HowItIsRun, TrainsLikeOneRank) {
  const auto& setup = GetParam();
  const double tolerance = setup.precision == "fp32" ? 1e-5 : 2e-2;
  const auto one = train({.model = setup.model}), many = train(setup);
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(many.losses[step] / one.losses[step], 1, tolerance) << "step " << step + 1;
    EXPECT_NEAR(many.norms[step] / one.norms[step], 1, 10 * tolerance) << "step " << step + 1;
  }
}

TEST_P(HowItIsRun, GivesTheSameBitsAgain) {
  const auto first = train(GetParam(), 3), second = train(GetParam(), 3);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.last_weight, second.last_weight);
}

std::string name_of(const ::testing::TestParamInfo<RunSetup>& info) {
  const auto& s = info.param;
  std::string name = s.model + "_" + std::to_string(s.ranks) + "ranks_stage" + std::to_string(s.stage) + "_micro" +
                     std::to_string(s.micro_batch) + "x" + std::to_string(s.accumulation) + "_" + s.checkpointing +
                     "_" + s.reshard + "_prefetch" + std::to_string(s.prefetch) + "_" + s.precision;
  for (auto& c : name)
    if (c == '-') c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Setups, HowItIsRun,
    ::testing::Values(
        RunSetup{.ranks = 1, .micro_batch = 2, .accumulation = 2}, RunSetup{.ranks = 2, .stage = 0, .micro_batch = 2},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 2},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 1, .accumulation = 2},
        RunSetup{.ranks = 4, .stage = 3, .micro_batch = 1}, RunSetup{.ranks = 4, .stage = 0, .micro_batch = 1},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 2, .checkpointing = "full"},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 2, .reshard = "always"},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 2, .reshard = "false"},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 2, .prefetch = 1},
        RunSetup{.model = "gpt2", .ranks = 2, .stage = 3, .micro_batch = 2},
        RunSetup{.model = "qwen3", .ranks = 2, .stage = 3, .micro_batch = 2}, RunSetup{.precision = "bf16-mixed"},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 1, .accumulation = 2, .precision = "bf16-mixed"},
        RunSetup{.ranks = 2, .stage = 0, .micro_batch = 1, .accumulation = 2, .precision = "bf16-mixed"},
        RunSetup{.model = "gpt2", .ranks = 2, .stage = 3, .micro_batch = 2, .precision = "bf16-mixed"},
        RunSetup{.ranks = 2, .stage = 3, .micro_batch = 2, .precision = "bf16"}),
    name_of);

}  // namespace
}  // namespace shardfit::engine::testing
