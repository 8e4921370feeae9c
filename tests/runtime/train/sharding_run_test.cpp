// However a run is spread over ranks, micro batches and stages, it is the same run.
#include <cmath>

#include "runtime/checkpoint/safetensors.hpp"
#include "tests/runtime/train/program.hpp"

namespace shardfit::end_to_end {
namespace {

using Sharding = TrainTest;

Json plan(int ranks, int stage, int micro_batch, int accumulation, const std::string& checkpointing = "none") {
  Json sharding{
      {"stage", stage}, {"shard_degree", stage == 0 ? 1 : ranks}, {"replicate_degree", stage == 0 ? ranks : 1}};
  return {{"gpu", "cpu"},
          {"gpus_per_node", ranks},
          {"nodes", 1},
          {"sharding", sharding},
          {"micro_batch", micro_batch},
          {"gradient_accumulation", accumulation},
          {"activation_checkpointing", checkpointing}};
}

// A model of its own without weights, with a tokenizer, and text to train on.
Json text_job(const std::filesystem::path& folder) {
  const auto model = folder / "model";
  std::filesystem::create_directories(model);
  std::filesystem::copy_file(std::filesystem::path(SHARDFIT_SOURCE_DIR) / "tests/runtime/tokenizer/data/smollm.json",
                             model / "tokenizer.json", std::filesystem::copy_options::overwrite_existing);
  std::ofstream(model / "config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 5, "num_key_value_heads": 1, "vocab_size": 717, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "eos_token_id": 0})";
  std::filesystem::create_directories(folder / "corpus");
  const char* sentences[] = {"The quick brown fox jumps over the lazy dog. ",
                             "It was a dark and stormy night, and the rain fell in torrents. ",
                             "All happy families are alike. ", "Call me Ishmael, some years ago. ",
                             "In the beginning there was a list of numbers: 1, 22, 333. "};
  for (int file = 0; file < 12; ++file) {
    std::ofstream text(folder / "corpus" / ("t" + std::to_string(file) + ".txt"));
    for (int i = 0; i < 8 + 5 * file; ++i) text << sentences[(i * i + file) % 5];
  }
  return {{"model", model.string()},
          {"data", {{"train", (folder / "corpus").string()}, {"format", "text"}}},
          {"duration", {{"steps", 20}}},
          {"sequence_length", 64},
          {"global_batch_sequences", 8},
          {"precision", "fp32"},
          {"train",
           {{"learning_rate", 3e-3},
            {"warmup_steps", 2},
            {"weight_decay", 0.1},
            {"init", "random"},
            {"save_steps", 0},
            {"log_sample_ids", true}}}};
}

TEST_F(Sharding, TwentyPackedStepsAreTheSameOnAnyRanksStageAndMicroBatch) {
  const Json job = text_job(folder_);
  const auto one = train(job, 1, "one");
  ASSERT_EQ(one.size(), 20u);
  EXPECT_LT(one.back().at("loss").get<double>(), one.front().at("loss").get<double>() - 0.5);  // it learns
  int n = 0;
  for (const Json& p :
       {plan(2, 3, 4, 1), plan(2, 3, 1, 4), plan(2, 0, 2, 2), plan(4, 3, 2, 1, "full"), plan(1, 0, 2, 4, "full")}) {
    const std::string out = "out" + std::to_string(n++);
    std::ofstream(folder_ / "plan.json") << p.dump();
    const auto got = train(job, p.at("gpus_per_node").get<int>(), out, {"--plan", (folder_ / "plan.json").string()});
    SCOPED_TRACE(p.dump());
    expect_close(got, one, 1e-5);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].at("sample_ids"), one[i].at("sample_ids"));
      EXPECT_EQ(got[i].at("samples"), one[i].at("samples"));
      EXPECT_EQ(got[i].at("supervised_tokens"), one[i].at("supervised_tokens"));
      const Json& memory = got[i].at("memory");
      EXPECT_EQ(memory.at("allocated_peak"), memory.at("planned_peak"));
    }
  }
}

TEST_F(Sharding, AShortLastBatchIsWeightedByItsTokens) {
  Json job = golden_job();
  job["duration"] = {{"epochs", 2}};
  job["global_batch_sequences"] = 16;  // 40 rows: 16, 16, 8
  job["data"]["shuffle"] = true;
  job["train"]["log_sample_ids"] = true;
  const auto one = train(job, 1, "one"), two = train(job, 2, "two"),
             four = train(job, 4, "four", {"--set", "global_batch_sequences=16"});
  ASSERT_EQ(one.size(), 6u);
  expect_close(two, one, 1e-5);
  expect_close(four, one, 1e-5);
  EXPECT_EQ(one[2].at("samples"), Json::array({32, 39}));
  EXPECT_EQ(one[3].at("samples"), Json::array({40, 55}));
  std::vector<int> seen(40);
  for (std::size_t step = 0; step < 3; ++step)
    for (const int id : one[step].at("sample_ids")) ++seen[static_cast<std::size_t>(id)];
  EXPECT_EQ(seen, std::vector<int>(40, 1));
  EXPECT_NE(one[0].at("sample_ids"), one[3].at("sample_ids"));
  // 10 rows on 4 ranks with micro batch 4: the last batch leaves ranks without samples.
  job["train"]["dataloader_drop_last"] = true;
  const auto dropped = train(job, 2, "dropped");
  ASSERT_EQ(dropped.size(), 4u);
  EXPECT_EQ(dropped[2].at("samples"), Json::array({32, 47}));
}

TEST_F(Sharding, RanksWithoutSamplesTakePart) {
  Json job = golden_job("qwen3");
  job["duration"] = {{"epochs", 1}};
  std::ofstream rows(folder_ / "five.jsonl");
  std::ifstream all(kGoldens / "batches.jsonl");
  std::string line;
  for (int i = 0; i < 5 && std::getline(all, line); ++i) rows << line << "\n";
  rows << R"({"input_ids": [4, 5, 6], "labels": [-100, -100, -100]})"
       << "\n";  // in the last batch, nothing supervised of its own
  rows.close();
  job["data"]["train"] = (folder_ / "five.jsonl").string();
  const auto one = train(job, 1, "one"), four = train(job, 4, "four");
  ASSERT_EQ(one.size(), 2u);
  expect_close(four, one, 1e-5);
  EXPECT_EQ(four[1].at("samples"), Json::array({4, 5}));
}

TEST_F(Sharding, DropoutIsDrawnBySeedStepAndSample) {
  Json job = golden_job("gpt2", 5);
  job["train"]["dropout"] = 0.2;
  const auto one = train(job, 1, "one");
  expect_close(train(job, 4, "four"), one, 1e-5);
  job["train"]["seed"] = 43;
  EXPECT_GT(std::abs(train(job, 1, "other")[0].at("loss").get<double>() - one[0].at("loss").get<double>()), 1e-4);
  job["train"]["dropout"] = 0.0;
  EXPECT_GT(std::abs(train(job, 1, "none")[0].at("loss").get<double>() - one[0].at("loss").get<double>()), 1e-4);
}

TEST_F(Sharding, ABatchWithNothingSupervisedCounts) {
  std::ofstream(folder_ / "none.jsonl") << R"({"input_ids": [4, 5, 6], "labels": [-100, -100, -100]})"
                                        << "\n"
                                        << R"({"input_ids": [4, 5, 6, 9]})"
                                        << "\n";
  Json job = golden_job("llama_tied", 2);
  job["data"]["train"] = (folder_ / "none.jsonl").string();
  job["global_batch_sequences"] = 1;
  const auto got = train(job, 1, "out");
  ASSERT_EQ(got.size(), 2u);
  EXPECT_TRUE(got[0].at("loss").is_null());
  EXPECT_EQ(got[0].at("grad_norm"), 0);
  EXPECT_EQ(got[0].at("supervised_tokens"), 0);
  EXPECT_EQ(got[1].at("supervised_tokens"), 3);
}

TEST_F(Sharding, ExportsAreHuggingFaceFoldersThatTrainOn) {
  Json job = golden_job("gpt2");
  job["data"]["eval"] = (kGoldens / "batches.jsonl").string();
  job["train"]["eval_steps"] = 10;
  const auto got = train(job, 3, "out", {"--set", "global_batch_sequences=3"});
  const auto evals = events("out", "eval");
  ASSERT_EQ(evals.size(), 1u);
  EXPECT_EQ(evals[0].at("samples"), 40);
  const Result verified = run({"verify", output(), "--json"});
  EXPECT_EQ(verified.status, 0) << verified.text;
  const Result exported = run({"export", output(), (folder_ / "hf").string(), "--max-shard-size", "50KB", "--states"});
  ASSERT_EQ(exported.status, 0) << exported.text;
  // The same names and shapes as transformers saved.
  const checkpoint::SafetensorsFile original(kGoldens / "gpt2/model.safetensors");
  const Json index = read_json_file(folder_ / "hf/model.safetensors.index.json");
  ASSERT_EQ(index.at("weight_map").size(), original.tensors().size());
  for (const auto& [name, file] : index.at("weight_map").items()) {
    const checkpoint::SafetensorsFile part(folder_ / "hf" / file.get<std::string>());
    ASSERT_NE(original.find(name), nullptr) << name;
    EXPECT_EQ(part.find(name)->shape, original.find(name)->shape) << name;
    EXPECT_EQ(part.find(name)->storage, checkpoint::Storage::kF32);
  }
  // Read back, it is the model that the run evaluated at its end.
  for (const std::string& model : {(folder_ / "hf").string(), output()}) {
    const Result eval = run({"eval", model, (kGoldens / "batches.jsonl").string(), "--json"});
    ASSERT_EQ(eval.status, 0) << eval.text;
    EXPECT_NEAR(Json::parse(eval.text).at("loss").get<double>(), evals[0].at("loss").get<double>(), 1e-6);
  }
  EXPECT_EQ(run({"export", output(), (folder_ / "hf").string()}).status, 2);
}

}  // namespace
}  // namespace shardfit::end_to_end
