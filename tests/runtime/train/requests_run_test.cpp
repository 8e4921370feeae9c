// Requests at the run's edges: a second stop, a job in other words, numbers of ranks that are none, settings that
// nothing reads.
#include "tests/runtime/train/program.hpp"

namespace shardfit::end_to_end {
namespace {

class Requests : public TrainTest {};

TEST_F(Requests, ASecondStopEndsAtOnceAndClosesTheMetrics) {
  std::ofstream rows(folder_ / "rows.jsonl");  // one step of them takes many seconds
  for (int i = 0; i < 60000; ++i)
    rows << R"({"input_ids":[5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24]})"
         << "\n";
  rows.close();
  Json job = golden_job("llama_tied", 3);
  job["data"]["train"] = (folder_ / "rows.jsonl").string();
  job["global_batch_sequences"] = 60000;
  std::ofstream(folder_ / "plan.json")
      << R"({"gpu": "cpu", "gpus_per_node": 2, "sharding": {"stage": 3}, "micro_batch": 1, "gradient_accumulation": 30000})";
  Program program({write_job(job), "--ranks", "2", "--plan", (folder_ / "plan.json").string(), "--output", output()},
                  folder_ / "log");
  for (int i = 0; i < 12000 && events("out", "start").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_FALSE(events("out", "start").empty()) << read_file(folder_ / "log");
  program.kill(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(steps("out").empty());  // the step goes on
  program.kill(SIGTERM);
  const Result result = program.wait();
  EXPECT_EQ(result.status, 1) << result.text;
  EXPECT_TRUE(steps("out").empty());
  EXPECT_EQ(lines("out").back(), Json::parse(R"({"event": "end", "reason": "failed", "exit": 1})"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/checkpoints/step-00000001"));
}

TEST_F(Requests, TheOutputsOwnJobResumes) {
  std::filesystem::copy(kGoldens / "llama_tied", folder_ / "model", std::filesystem::copy_options::recursive);
  std::filesystem::copy_file(kGoldens / "batches.jsonl", folder_ / "rows.jsonl");
  Json job = golden_job("llama_tied", 4);
  job["model"] = "model";
  job["data"]["train"] = "rows.jsonl";
  train(job, 1, "out");
  const Result result = run({output() + "/job.json", "--output", output(), "--set", "duration.steps=6"});
  EXPECT_EQ(result.status, 0) << result.text;
  EXPECT_EQ(steps("out").size(), 6u);
  EXPECT_EQ(events("out", "resume").at(0).at("step"), 4);
  // Another model in the same words is another job.
  const Result other =
      run({output() + "/job.json", "--output", output(), "--set", "model=" + (kGoldens / "llama_untied").string()});
  EXPECT_EQ(other.status, 2) << other.text;
  EXPECT_NE(other.text.find("/model"), std::string::npos) << other.text;
}

TEST_F(Requests, RanksThatAreNoneAreRefused) {
  for (const char* ranks : {"0", "-1", "x"}) {
    const Result result = run({write_job(golden_job("llama_tied", 1)), "--ranks", ranks, "--output", output()});
    EXPECT_EQ(result.status, 2) << ranks;
    EXPECT_NE(result.text.find("--ranks"), std::string::npos) << result.text;
  }
  EXPECT_FALSE(std::filesystem::exists(output()));
}

TEST_F(Requests, RefusalsNameFileAndKeyBeforeAnythingIsWritten) {
  std::ofstream(folder_ / "plan.json")
      << R"({"gpu": "cpu", "gpus_per_node": 2, "tensor_parallel": 2, "micro_batch": 4})";
  const Result result =
      run({write_job(golden_job()), "--plan", (folder_ / "plan.json").string(), "--output", output()});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.text.find("plan.json: /tensor_parallel: "), std::string::npos) << result.text;
  EXPECT_FALSE(std::filesystem::exists(output()));
}

TEST_F(Requests, ABatchInTokensIsRoundedToWholeMicroBatches) {
  Json job = golden_job("llama_tied", 2);
  job.erase("global_batch_sequences");
  job["global_batch_tokens"] = 24 * 5;
  // Two ranks of micro batch 3: 6 sequences a micro step are nearest.
  std::ofstream(folder_ / "plan.json")
      << R"({"gpu": "cpu", "gpus_per_node": 2, "sharding": {"stage": 3}, "micro_batch": 3, "gradient_accumulation": 1})";
  const auto planned = train(job, 2, "planned", {"--plan", (folder_ / "plan.json").string()});
  ASSERT_EQ(planned.size(), 2u);
  EXPECT_EQ(planned[1].at("samples"), Json::parse("[6, 11]"));
  EXPECT_NE(read_file(folder_ / "log").find("global_batch_tokens=144 (120 rounded to whole micro batches)"),
            std::string::npos);
  // Planned for the machine: a multiple of the ranks.
  EXPECT_EQ(train(job, 2, "own").at(0).at("tokens").get<int>() % 48, 0);
  const Result wrong = run({write_job(job), "--ranks", "2", "--plan", (folder_ / "plan.json").string(), "--set",
                            "plan.gradient_accumulation=3", "--output", output("wrong")});
  EXPECT_EQ(wrong.status, 2) << wrong.text;
  EXPECT_NE(wrong.text.find("/gradient_accumulation"), std::string::npos) << wrong.text;
}

TEST_F(Requests, AnUnfinishedLineOfTheMetricsIsCutOff) {
  train(golden_job("llama_tied", 2), 1, "out");
  std::ofstream(folder_ / "out/metrics.jsonl", std::ios::app) << R"({"step": 3, "lo)";
  train(golden_job("llama_tied", 4), 1, "out");
  std::ifstream file(folder_ / "out/metrics.jsonl");
  for (std::string line; std::getline(file, line);) EXPECT_TRUE(Json::accept(line)) << line;
  EXPECT_EQ(steps("out").size(), 4u);
}

TEST_F(Requests, MorePositionsThanGpt2HasLearnedAreRefused) {
  Json job = golden_job("gpt2", 1);
  job["sequence_length"] = 65;  // of 64
  const Result result = run({write_job(job), "--output", output()});
  EXPECT_EQ(result.status, 2) << result.text;
  EXPECT_NE(result.text.find("/sequence_length: 65 tokens"), std::string::npos) << result.text;
  const Result logits = run({"logits", (kGoldens / "gpt2").string(), (kGoldens / "batches.jsonl").string(),
                             output("l.safetensors"), "--sequence-length", "65"});
  EXPECT_EQ(logits.status, 2) << logits.text;
  EXPECT_FALSE(std::filesystem::exists(output("l.safetensors")));
}

TEST_F(Requests, WithoutEffectIsSaidOnce) {
  Json job = golden_job("llama_tied", 2);
  job["train"]["eval_steps"] = 1;
  const Result result = run(
      {write_job(job), "--output", output(), "--set", "plan.deepspeed={\"gradient_clipping\": 1.0, \"nothing\": 1}"});
  EXPECT_EQ(result.status, 0) << result.text;
  const std::string words =
      "keys of the plan without effect in shardfit-train: deepspeed/gradient_clipping, deepspeed/nothing";
  const auto first = result.text.find(words);
  ASSERT_NE(first, std::string::npos) << result.text;
  EXPECT_EQ(result.text.find(words, first + 1), std::string::npos) << result.text;
  EXPECT_NE(result.text.find("train.eval_steps has no effect"), std::string::npos) << result.text;
}

}  // namespace
}  // namespace shardfit::end_to_end
