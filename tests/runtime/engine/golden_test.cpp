// Every family against transformers: logits, loss, each gradient, ten steps of training; values from make_goldens.py.
#include <cmath>

#include "runtime/checkpoint/safetensors.hpp"
#include "tests/runtime/engine/fixture.hpp"

namespace shardfit::engine::testing {
namespace {

struct Golden {
  nlohmann::json values;
  checkpoint::SafetensorsFile tensors;
  explicit Golden(const std::string& model)
      : values(nlohmann::json::parse(read_file(data_folder() / model / "golden.json"))),
        tensors(data_folder() / model / "golden.safetensors") {}
  std::vector<float> tensor(const std::string& name) const {
    const auto* stored = tensors.find(name);
    EXPECT_NE(stored, nullptr) << name;
    std::vector<float> out(stored ? static_cast<std::size_t>(stored->elements()) : 0);
    if (stored) tensors.read_fp32(name, 0, out);
    return out;
  }
};

class GoldenModel : public ::testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  const std::string name_ = std::get<0>(GetParam());
  const bool own_ = std::get<1>(GetParam());  // the CPU's kernels, or the compositions that GPUs use
  RunSetup setup_{.model = std::get<0>(GetParam())};
  model::Model model_ = model::load_model((data_folder() / name_).string());
  models::Math math_ = models::math_of(model_, 0.0);
  checkpoint::HuggingFaceWeights weights_{data_folder() / name_};
  Golden golden_{name_};
  std::vector<Row> rows_ = golden_rows(24);
};

TEST_P(GoldenModel, LogitsLossAndEveryGradientEqualTransformers) {
  setup_.loss_rows = 40;  // chunks that do not divide the rows
  on_ranks(1, [&](comm::Collective& collective) {
    Engine engine(make_schedule(setup_, model_), math_, collective, 1,
                  own_ ? nullptr : kernels::make_aten_kernels(kernels::Type::kFp32, -1));
    engine.load(weights_);
    const auto expected = golden_.tensor("logits");
    const auto vocabulary = model_.vocabulary;
    double worst = 0;
    engine.logits(micro_batch_of(rows_, {0, 1, 2, 3}), [&](std::int64_t row, std::int64_t first, std::int64_t tokens,
                                                           const float* logits) {
      for (std::int64_t t = 0; t < tokens; ++t)
        if (first + t < rows_[static_cast<std::size_t>(row)].length)
          for (std::int64_t v = 0; v < vocabulary; ++v)
            worst = std::max(
                worst, std::fabs(static_cast<double>(logits[t * vocabulary + v]) -
                                 static_cast<double>(
                                     expected[static_cast<std::size_t>(((row * 24) + first + t) * vocabulary + v)])));
    });
    EXPECT_LT(worst, 1e-5);
    if (golden_.values["training"].is_null()) return;  // of this model there are logits only
    const double loss = train_batch(engine, collective, setup_, rows_, 0, 1);
    EXPECT_NEAR(loss, golden_.values["loss"].get<double>(), 1e-5);
    for (const auto& parameter : model::all_parameters(model_)) {
      const auto want = golden_.tensor("grad." + parameter.name), have = engine.gradient_of(parameter.name);
      ASSERT_EQ(want.size(), have.size());
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        difference += std::pow(static_cast<double>(want[i]) - static_cast<double>(have[i]), 2);
        size += std::pow(static_cast<double>(want[i]), 2);
      }
      EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(size) + 1e-7) << parameter.name;
    }
  });
}

TEST_P(GoldenModel, TenTrainingStepsEqualTransformers) {
  const auto& training = golden_.values["training"];
  if (training.is_null()) GTEST_SKIP() << "of this model there are logits only";
  on_ranks(1, [&](comm::Collective& collective) {
    Engine engine(make_schedule(setup_, model_), math_, collective, 1,
                  own_ ? nullptr : kernels::make_aten_kernels(kernels::Type::kFp32, -1));
    engine.load(weights_);
    for (std::int64_t step = 1; step <= 10; ++step) {
      const auto at = static_cast<std::size_t>(step - 1);
      const double loss = train_batch(engine, collective, setup_, rows_, (step - 1) * 4, step);
      const double norm = engine.measure_gradients().norm;
      EXPECT_NEAR(loss / training["losses_fp64"][at].get<double>(), 1, 3e-6) << "step " << step;
      EXPECT_NEAR(norm / training["grad_norms_fp64"][at].get<double>(), 1, 2e-5) << "step " << step;
      engine.update({training["learning_rates"][at], 0.9, 0.95, 1e-8, 0.1, 1.0}, step, norm);
    }
  });
}

TEST_P(GoldenModel, PackedDocumentsDoNotSeeEachOther) {
  if (!golden_.values.contains("packed") || golden_.values["packed"].is_null()) GTEST_SKIP() << "no packed golden";
  const auto& packed = golden_.values["packed"];
  const std::vector<std::int32_t> ids = packed["input_ids"];
  const std::vector<Row> rows{make_row(ids, ids, 24, packed["document_starts"])};
  setup_.micro_batch = 1;
  on_ranks(1, [&](comm::Collective& collective) {
    Engine engine(make_schedule(setup_, model_), math_, collective, 1,
                  own_ ? nullptr : kernels::make_aten_kernels(kernels::Type::kFp32, -1));
    engine.load(weights_);
    EXPECT_NEAR(engine.evaluate(micro_batch_of(rows, {0})) / 23, packed["loss"].get<double>(), 1e-5);
  });
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel,
                         ::testing::Combine(::testing::Values("llama_tied", "llama_untied", "qwen2", "qwen3", "mistral",
                                                              "mistral_window", "gpt2"),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_own" : "_aten");
                         });

}  // namespace
}  // namespace shardfit::engine::testing
