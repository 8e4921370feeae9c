// Runs shardfit-train as a user does and reads what it leaves behind.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "regions/base/files.hpp"
#include "regions/base/json.hpp"

namespace shardfit::end_to_end {

inline const std::filesystem::path kGoldens = std::filesystem::path(SHARDFIT_SOURCE_DIR) / "tests/runtime/data";

struct Result {
  int status = -1;   // exit status; 128 + signal where one ended it
  std::string text;  // standard output and error together
};

// A process that is ended with the test whatever happens, and after `kDeadline` in any case.
class Program {
 public:
  static constexpr std::chrono::seconds kDeadline{120};

  Program(const std::vector<std::string>& arguments, const std::filesystem::path& log,
          const std::map<std::string, std::string>& environment = {})
      : log_(log) {
    std::vector<std::string> words{SHARDFIT_BIN_DIR "/shardfit-train"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::ofstream{log_};
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      if (std::freopen(log_.c_str(), "a", stdout) == nullptr || ::dup2(1, 2) < 0) ::_exit(99);
      ::setenv("OMP_NUM_THREADS", "1", 1);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      ::execv(argv[0], argv.data());
      ::_exit(98);
    }
    ::setpgid(pid_, pid_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ > 0 && !waited_) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }
  void kill_all() const { ::kill(-pid_, SIGKILL); }  // launcher and ranks at once

  Result wait() {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "shardfit-train hangs; its output:\n" << read_file(log_);
        ::kill(-pid_, SIGKILL);
        ::waitpid(pid_, &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    waited_ = true;
    ::kill(-pid_, SIGKILL);  // ranks that a failed launcher might leave
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(log_)};
  }

  // Process ids of the launcher's ranks, in the order they were started.
  std::vector<pid_t> children() const {
    std::vector<pid_t> pids;
    std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
    for (pid_t child; file >> child;) pids.push_back(child);
    return pids;
  }

 private:
  std::filesystem::path log_;
  pid_t pid_ = -1;
  bool waited_ = false;
};

// A folder of the test's own with a job in it.
class TrainTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + "_" + info->name();
    for (char& c : name)
      if (c == '/') c = '_';
    folder_ = std::filesystem::path(testing::TempDir()) / ("shardfit_train_" + std::to_string(::getpid()) + "_" + name);
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }

  // The training of the golden values (tests/runtime/make_goldens.py) on one of their models.
  Json golden_job(const std::string& model = "llama_tied", std::int64_t steps = 10) const {
    return {{"model", (kGoldens / model).string()},
            {"data",
             {{"train", (kGoldens / "batches.jsonl").string()},
              {"format", "jsonl"},
              {"packing", false},
              {"shuffle", false}}},
            {"duration", {{"steps", steps}}},
            {"sequence_length", 24},
            {"global_batch_sequences", 4},
            {"precision", "fp32"},
            {"train",
             {{"learning_rate", 2e-3},
              {"warmup_steps", 3},
              {"weight_decay", 0.1},
              {"adam_beta1", 0.9},
              {"adam_beta2", 0.95},
              {"adam_epsilon", 1e-8},
              {"max_grad_norm", 1.0},
              {"min_lr_ratio", 0.1},
              {"save_steps", 0}}}};
  }
  std::string write_job(const Json& job, const std::string& name = "job.json") const {
    std::ofstream(folder_ / name) << job.dump(1);
    return (folder_ / name).string();
  }
  std::string output(const std::string& name = "out") const { return (folder_ / name).string(); }

  Result run(const std::vector<std::string>& arguments,
             const std::map<std::string, std::string>& environment = {}) const {
    return Program(arguments, folder_ / "log", environment).wait();
  }
  // Trains and expects success.
  std::vector<Json> train(const Json& job, int ranks, const std::string& out,
                          std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{write_job(job), "--ranks", std::to_string(ranks), "--output", output(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 0) << result.text;
    return steps(out);
  }

  std::vector<Json> lines(const std::string& out) const {
    std::vector<Json> all;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const Json json = Json::parse(line, nullptr, false); !json.is_discarded()) all.push_back(json);
    return all;
  }
  std::vector<Json> events(const std::string& out, const std::string& kind) const {
    std::vector<Json> found;
    for (const Json& line : lines(out))
      if (line.value("event", "") == kind) found.push_back(line);
    return found;
  }
  // The metrics lines of steps; where a step was done again after a resume, the last one.
  std::vector<Json> steps(const std::string& out) const {
    std::map<std::int64_t, Json> by_step;
    for (const Json& line : lines(out))
      if (!line.contains("event")) by_step[line.at("step")] = line;
    std::vector<Json> found;
    for (const auto& [step, line] : by_step) found.push_back(line);
    return found;
  }
  // Waits until metrics.jsonl has a line of this step.
  void wait_for_step(const std::string& out, std::int64_t step) const {
    for (int i = 0; i < 6000; ++i) {
      const auto done = steps(out);
      if (!done.empty() && done.back().at("step").get<std::int64_t>() >= step) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL() << "step " << step << " never came; log:\n" << read_file(folder_ / "log");
  }

  std::filesystem::path folder_;
};

inline void expect_close(const std::vector<Json>& got, const std::vector<Json>& want, double relative) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    for (const char* key : {"loss", "grad_norm"}) {
      const double a = got[i].at(key), b = want[i].at(key);
      EXPECT_LE(std::abs(a - b), relative * std::abs(b))
          << key << " of step " << got[i].at("step") << ": " << a << " and " << b;
    }
}

inline void expect_same(const std::vector<Json>& got, const std::vector<Json>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    for (const char* key : {"step", "loss", "grad_norm", "learning_rate", "tokens", "supervised_tokens", "samples"})
      EXPECT_EQ(got[i].at(key), want[i].at(key)) << key << " of step " << got[i].at("step");
}

}  // namespace shardfit::end_to_end
