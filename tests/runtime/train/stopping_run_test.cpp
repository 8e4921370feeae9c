// Stopping, failing and resuming.
#include <algorithm>
#include <cmath>

#include "tests/runtime/train/program.hpp"

namespace shardfit::end_to_end {
namespace {

class Stopping : public TrainTest {
 protected:
  // Ranks that the test starts itself, as srun or torchrun would.
  std::map<std::string, std::string> rank_environment(int rank, int ranks, int port) const {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(ranks)},
            {"LOCAL_RANK", std::to_string(rank)},
            {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)},
            {"SHARDFIT_TIMEOUT", "30"}};
  }
  int free_port() const { return 20000 + static_cast<int>(::getpid() % 20000); }
  Json long_job() const {
    Json job = golden_job("llama_tied", 4000);
    job["train"]["save_steps"] = 50;
    job["train"]["save_total_limit"] = 2;
    return job;
  }
  std::string rank_files(const std::filesystem::path& checkpoint) const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::string bytes;
    for (const auto& file : files) bytes += read_file(file);
    return bytes;
  }
};

TEST_F(Stopping, AResumedRunEqualsTheUninterruptedOneBitForBit) {
  for (const int ranks : {1, 2}) {
    const std::string name = std::to_string(ranks);
    Json job = golden_job("llama_untied", 20);
    job["data"]["shuffle"] = true;
    job["train"]["save_steps"] = 10;
    const auto whole = train(job, ranks, "whole" + name);
    const auto resumed =
        train(job, ranks, "resumed" + name, {"--resume", output("whole" + name) + "/checkpoints/step-00000010"});
    ASSERT_EQ(whole.size(), 20u);
    ASSERT_EQ(resumed.size(), 10u);
    expect_same(resumed, {whole.begin() + 10, whole.end()});
    EXPECT_TRUE(rank_files(folder_ / ("whole" + name) / "checkpoints/step-00000020") ==
                rank_files(folder_ / ("resumed" + name) / "checkpoints/step-00000020"));
    ASSERT_EQ(events("resumed" + name, "resume").size(), 1u);
    EXPECT_EQ(events("resumed" + name, "resume")[0].at("step"), 10);
    // On another number of ranks it is the same within rounding.
    const auto other =
        train(job, 3 - ranks, "other" + name, {"--resume", output("whole" + name) + "/checkpoints/step-00000010"});
    expect_close(other, {whole.begin() + 10, whole.end()}, 1e-5);
  }
}

TEST_F(Stopping, SignalsSaveAndAskToBeQueuedAgain) {
  const auto whole = train(golden_job("llama_tied", 600), 2, "whole");
  Json job = golden_job("llama_tied", 600);
  int round = 0;
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const std::string out = "out" + std::to_string(round);
    {
      Program program({write_job(job), "--ranks", "2", "--output", output(out)}, folder_ / "log");
      ASSERT_NO_FATAL_FAILURE(wait_for_step(out, 20));
      if (round == 0) {
        program.kill(signal);  // the launcher passes it on
      } else {
        const auto ranks = program.children();
        ASSERT_EQ(ranks.size(), 2u);
        ::kill(ranks[1], signal);  // one rank is enough
      }
      const Result result = program.wait();
      ASSERT_EQ(result.status, 75) << result.text;
    }
    const auto stop = events(out, "stop");
    ASSERT_EQ(stop.size(), 1u);
    EXPECT_EQ(lines(out).back(), Json::parse(R"({"event": "end", "reason": "stopped", "exit": 75})"));
    EXPECT_EQ(steps(out).back().at("step"), stop[0].at("step"));
    EXPECT_TRUE(
        std::filesystem::exists(std::filesystem::path(stop[0].at("path").get<std::string>()) / "manifest.json"));
    EXPECT_LT(stop[0].at("step").get<int>(), 600);
    expect_same(train(job, 2, out), whole);
    EXPECT_EQ(lines(out).back().at("reason"), "completed");
    ++round;
  }
}

TEST_F(Stopping, KilledAtAnyMomentItResumes) {
  Json job = golden_job("qwen2", 60);
  job["train"]["save_steps"] = 2;
  job["train"]["save_total_limit"] = 2;
  const auto whole = train(job, 2, "whole");
  std::vector<std::string> arguments{write_job(job), "--ranks", "2", "--output", output()};
  int kills = 0;
  std::int64_t wanted = 3;
  while (kills < 8) {
    Program program(arguments, folder_ / "log");
    const auto before = lines("out").size();
    const auto begun = [&] {  // of a save
      const auto all = lines("out");
      for (std::size_t i = before; i < all.size(); ++i)
        if (all[i].value("event", "") == "checkpoint_begin" && all[i].at("step").get<std::int64_t>() >= wanted)
          return true;
      return false;
    };
    for (int i = 0; i < 4000 && !begun(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::usleep(static_cast<useconds_t>(300 * kills));  // at different places of the save
    program.kill_all();
    program.wait();
    ++kills;
    wanted =
        steps("out").empty() ? 3 : std::min<std::int64_t>(steps("out").back().at("step").get<std::int64_t>() + 2, 55);
  }
  expect_same(train(job, 2, "out"), whole);
  EXPECT_FALSE(events("out", "resume").empty());
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out/checkpoints"))
    EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos);
}

TEST_F(Stopping, ARankThatDiesEndsTheOthersByName) {
  Program program({write_job(long_job()), "--ranks", "3", "--set", "global_batch_sequences=6", "--output", output()},
                  folder_ / "log", {{"SHARDFIT_TIMEOUT", "30"}});
  ASSERT_NO_FATAL_FAILURE(wait_for_step("out", 10));
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[1], SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  const Result result = program.wait();
  EXPECT_EQ(result.status, 10) << result.text;
  EXPECT_NE(result.text.find("rank 1"), std::string::npos) << result.text;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
  EXPECT_EQ(lines("out").back(), Json::parse(R"({"event": "end", "reason": "failed", "exit": 10})"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/dumps/rank-0.json"));
}

TEST_F(Stopping, ARankThatStandsStillEndsTheRunWithinTheTimeout) {
  Program program({write_job(long_job()), "--ranks", "2", "--output", output()}, folder_ / "log",
                  {{"SHARDFIT_TIMEOUT", "3"}});
  ASSERT_NO_FATAL_FAILURE(wait_for_step("out", 5));
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGSTOP);
  const Result result = program.wait();
  EXPECT_EQ(result.status, 10) << result.text;
  EXPECT_NE(result.text.find("rank 1"), std::string::npos) << result.text;
}

TEST_F(Stopping, ASecondSignalStopsAtOnce) {
  Json job = golden_job("llama_tied", 4000);
  Program program({write_job(job), "--ranks", "2", "--output", output()}, folder_ / "log");
  ASSERT_NO_FATAL_FAILURE(wait_for_step("out", 5));
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[0], SIGSTOP);  // so that the other cannot finish its step
  program.kill(SIGTERM);
  ::usleep(100'000);
  program.kill(SIGTERM);
  ::kill(ranks[0], SIGCONT);
  const auto start = std::chrono::steady_clock::now();
  const Result result = program.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_NE(result.status, 0) << result.text;
}

TEST_F(Stopping, NonFiniteNumbersStopAllRanksOrAreSkipped) {
  Json job = golden_job("llama_tied", 3);
  job["train"]["learning_rate"] = 1e30;
  const Result stopped = run({write_job(job), "--ranks", "2", "--output", output()});
  EXPECT_EQ(stopped.status, 1) << stopped.text;
  EXPECT_NE(stopped.text.find("step 2 on rank"), std::string::npos) << stopped.text;
  job["train"]["on_nonfinite"] = "skip";
  const auto got = train(job, 2, "skipped");
  ASSERT_EQ(got.size(), 3u);
  EXPECT_TRUE(got[1].at("grad_norm").is_null());
  EXPECT_EQ(events("skipped", "skip").size(), 2u);
}

TEST_F(Stopping, RanksWithDifferentJobsDoNotStart) {
  const std::string job = write_job(golden_job());
  const int port = free_port();
  Program first({job, "--output", output()}, folder_ / "log0", rank_environment(0, 2, port));
  Program second({job, "--output", output(), "--set", "train.learning_rate=1e-4"}, folder_ / "log1",
                 rank_environment(1, 2, port));
  const Result a = first.wait(), b = second.wait();
  EXPECT_EQ(a.status, 11) << a.text;
  EXPECT_EQ(b.status, 11) << b.text;
  EXPECT_TRUE(steps("out").empty());
}

TEST_F(Stopping, DamagedCheckpointsArePassedOverAndNamed) {
  Json job = golden_job("mistral", 9);
  job["train"]["save_at"] = {3, 6};
  const auto whole = train(job, 2, "out");
  const auto damage = [&](const std::string& step) {
    const auto file = folder_ / "out/checkpoints" / step / "rank-00001-of-00002.safetensors";
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) - 5));
    bytes.put('\x7f');
  };
  damage("step-00000009");
  EXPECT_EQ(run({"verify", output()}).status, 1);
  const Result resumed = run({write_job(job), "--ranks", "2", "--output", output()});
  EXPECT_EQ(resumed.status, 0) << resumed.text;
  EXPECT_NE(resumed.text.find("passed over"), std::string::npos) << resumed.text;
  EXPECT_EQ(events("out", "resume").back().at("step"), 6);
  expect_same(steps("out"), whole);
  EXPECT_EQ(run({"verify", output()}).status, 0);
  damage("step-00000003");
  EXPECT_EQ(run({write_job(job), "--ranks", "2", "--output", output("other"), "--resume",
                 output() + "/checkpoints/step-00000003"})
                .status,
            1);
  for (const char* step : {"step-00000006", "step-00000009"}) damage(step);
  const Result none = run({write_job(job), "--ranks", "2", "--output", output()});
  EXPECT_EQ(none.status, 1) << none.text;
  EXPECT_NE(none.text.find("--resume never"), std::string::npos) << none.text;
}

TEST_F(Stopping, WhatMayNotChangeIsNamed) {
  Json job = golden_job("llama_tied", 4);
  job["train"]["save_steps"] = 2;
  train(job, 1, "out");
  const auto again = [&](const std::string& setting) {
    return run({write_job(job), "--output", output(), "--set", "duration.steps=6", "--set", setting});
  };
  for (const std::string setting :
       {"train.weight_decay=0.2", "train.seed=7", "sequence_length=20", "data.shuffle=true"}) {
    const Result result = again(setting);
    EXPECT_EQ(result.status, 2) << setting << result.text;
    const std::string key = setting.substr(setting.find('.') == std::string::npos ? 0 : setting.find('.') + 1);
    EXPECT_NE(result.text.find(key.substr(0, key.find('='))), std::string::npos) << result.text;
  }
  const Result changed = again("train.learning_rate=1e-4");
  EXPECT_EQ(changed.status, 0) << changed.text;
  EXPECT_EQ(steps("out").size(), 6u);
}

TEST_F(Stopping, WhatCannotBeDoneIsRefusedInOneLine) {
  struct Case {
    std::vector<std::string> set;
    std::string named;
  };
  const std::vector<Case> cases = {
      {{"model=\"no/such\""}, "no/such"},
      {{"data.train=\"no/such.jsonl\""}, "no/such.jsonl"},
      {{"train.learning_rat=1"}, "learning_rat"},
      {{"sequence_length=-5"}, "sequence_length"},
      {{"global_batch_sequences=0.5"}, "global_batch_sequences"},
      {{"duration={\"stepz\":1}"}, "stepz"},
      {{"method={\"kind\":\"lora\",\"rank\":8,\"alpha\":16,\"targets\":[\"q_proj\"]}"}, "method"},
      {{"optimizer.name=\"lion\""}, "optimizer"},
      {{"plan.micro_batch=3"}, "micro_batch"},
      {{"plan.gpu=\"no_such_gpu\""}, "gpu"},
      {{"plan.offload.optimizer=\"nvme\""}, "offload"},
      {{"plan.tensor_parallel=2"}, "tensor_parallel"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> arguments{write_job(golden_job()), "--output", output("refused")};
    for (const auto& set : c.set) arguments.insert(arguments.end(), {"--set", set});
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << c.set[0] << ": " << result.text;
    EXPECT_NE(result.text.find(c.named), std::string::npos) << c.set[0] << ": " << result.text;
    const auto last_line = result.text.substr(0, result.text.find_last_not_of('\n') + 1);
    EXPECT_NE(last_line.find("shardfit-train: "), std::string::npos) << result.text;
    EXPECT_TRUE(steps("refused").empty());
  }
  const Result usage = run({"--no-such-option"});
  EXPECT_EQ(usage.status, 2);
}

}  // namespace
}  // namespace shardfit::end_to_end
