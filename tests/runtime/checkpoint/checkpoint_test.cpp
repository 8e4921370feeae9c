#include "runtime/checkpoint/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "runtime/checkpoint/export.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "tests/runtime/checkpoint/crash_files.hpp"

namespace shardfit::checkpoint {
namespace {

using testing::HasSubstr;

// A model of three units whose values say what they are: unit, kind, element and step.
std::vector<FlatUnit> model() {
  std::vector<FlatUnit> units(3);
  units[0].name = "embedding";
  units[0].add("embed.weight", {5, 3});
  units[1].name = "block.0";
  units[1].add("norm.weight", {4});
  units[1].add("empty.weight", {0, 4});
  units[1].add("proj.weight", {3, 7});
  units[1].add("proj.bias", {1});
  units[2].name = "frozen";
  units[2].states = false;
  units[2].add("head.weight", {2, 2});
  return units;
}

float value(const std::string& unit, Kind kind, std::int64_t element, std::int64_t step) {
  return static_cast<float>(static_cast<std::int64_t>(unit.size()) * 1000 + static_cast<int>(kind) * 300 + element) +
         static_cast<float>(step) / 64;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    // In memory where that can be had: thousands of fsyncs.
    const std::filesystem::path memory = "/dev/shm";
    output_ = (::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::path(testing::TempDir())) /
              ("shardfit_ck_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(output_);
    std::filesystem::create_directories(output_ / "model");
    std::ofstream(output_ / "model/config.json")
        << R"({"model_type": "llama", "torch_dtype": "bfloat16", "own": {"kept": 1}})";
    std::ofstream(output_ / "model/tokenizer.json") << "{}";
  }
  void TearDown() override { std::filesystem::remove_all(output_); }

  SaveState state(std::int64_t step, std::int64_t ranks) {
    SaveState s;
    s.step = step;
    s.ranks = ranks;
    s.units = model();
    s.job_json = R"({"sequence_length": 16})";
    s.plan_json = R"({"gpu": "cpu"})";
    s.training_json = R"({"samples": )" + std::to_string(step * 4) + "}";
    s.tied = {{"lm_head.weight", "embed.weight"}};
    s.model_folder = output_ / "model";
    return s;
  }
  std::filesystem::path save(std::int64_t step, std::int64_t ranks, std::int64_t limit = 0,
                             FileLayer& files = real_files()) {
    const SaveState s = state(step, ranks);
    const auto unfinished = begin(files, output_, step, "t" + std::to_string(step));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<float> slice;
      write_rank(files, unfinished, s, rank, [&](const FlatUnit& unit, Kind kind) {
        slice.clear();
        for (std::int64_t e = rank * unit.slice(ranks); e < std::min((rank + 1) * unit.slice(ranks), unit.elements);
             ++e)
          slice.push_back(value(unit.name, kind, e, step));
        return std::span<const float>(slice);
      });
    }
    return commit(files, unfinished, output_, s, limit).path;
  }
  std::vector<std::string> folders() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(output_)))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void expect_step(const std::filesystem::path& folder, std::int64_t step) {
    EXPECT_EQ(verify(folder).step, step);
    const Checkpoint checkpoint = Checkpoint::open(folder);
    for (const FlatUnit& unit : checkpoint.units())
      for (const FlatParameter& p : unit.parameters)
        for (const Kind kind : {Kind::kParameters, Kind::kExpAvg, Kind::kExpAvgSq}) {
          if (kind != Kind::kParameters && !unit.states) continue;
          std::vector<float> got(static_cast<std::size_t>(p.elements()));
          checkpoint.read(p.name, kind, 0, got);
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_EQ(got[i], value(unit.name, kind, p.offset + static_cast<std::int64_t>(i), step)) << p.name;
        }
  }
  std::filesystem::path output_;
};

TEST_F(CheckpointTest, IsReadByAnyNumberOfRanks) {
  for (const std::int64_t wrote : {1, 2, 3, 8, 40}) {  // 40: more ranks than elements in a unit
    expect_step(save(wrote, wrote), wrote);
    const Checkpoint checkpoint = Checkpoint::open(checkpoints_folder(output_) / step_folder(wrote));
    EXPECT_EQ(checkpoint.ranks(), wrote);
    EXPECT_EQ(checkpoint.tied().front().first, "lm_head.weight");
    EXPECT_EQ(nlohmann::json::parse(checkpoint.training_json()).at("samples"), wrote * 4);
    // Another grouping than the one saved: everything in one unit, in another order, on 5 ranks.
    FlatUnit all{"all", true, {}, 0};
    all.add("head.weight", {2, 2});
    all.add("proj.weight", {3, 7});
    all.add("embed.weight", {5, 3});
    std::vector<float> whole;
    std::vector<std::string> without;
    for (std::int64_t rank = 0; rank < 5; ++rank) {
      std::vector<float> slice(static_cast<std::size_t>(all.slice(5)), -1);
      checkpoint.read_slice(all, Kind::kExpAvg, rank, 5, slice, rank == 0 ? &without : nullptr);
      whole.insert(whole.end(), slice.begin(), slice.end());
    }
    EXPECT_EQ(without, std::vector<std::string>{"head.weight"});
    EXPECT_EQ(whole[0], 0);  // it had no states
    EXPECT_EQ(whole[4], value("block.0", Kind::kExpAvg, 4, wrote));
    EXPECT_EQ(whole[25], value("embedding", Kind::kExpAvg, 0, wrote));
    EXPECT_EQ(whole[39], value("embedding", Kind::kExpAvg, 14, wrote));
  }
}

TEST_F(CheckpointTest, AModelThatDiffersIsRefused) {
  const Checkpoint checkpoint = Checkpoint::open(save(1, 2));
  FlatUnit unit{"u", true, {}, 0};
  unit.add("proj.weight", {7, 3});
  std::vector<float> out(21);
  EXPECT_THROW(checkpoint.read_slice(unit, Kind::kParameters, 0, 1, out), Error);
  unit.parameters[0].name = "no.such";
  EXPECT_THROW(checkpoint.read_slice(unit, Kind::kParameters, 0, 1, out), Error);
  EXPECT_THROW(checkpoint.read("proj.weight", Kind::kParameters, 1, out), Error);
}

TEST_F(CheckpointTest, ACrashAtAnyOperationLeavesACompleteCheckpoint) {
  int operations = 0;
  {
    CrashFiles counting(-1);
    save(1, 2);
    save(2, 2, 1, counting);
    operations = counting.operations();
  }
  ASSERT_GT(operations, 20);
  for (int crash = 0; crash < operations; ++crash)
    for (const bool renames_too : {false, true})
      for (const std::int64_t second :
           {2, 1}) {  // the next step, and the same step again (a run resumed from an older one)
        std::filesystem::remove_all(checkpoints_folder(output_));
        save(1, 2);
        CrashFiles files(crash);
        bool done = true;
        try {
          const SaveState s = state(second, 2);
          save(second, 2, 1, files);
        } catch (const Crash&) {
          done = false;
        }
        files.lose_what_was_not_synced(renames_too);
        const auto found = find_latest(output_);
        ASSERT_TRUE(found) << "crash before operation " << crash;
        ASSERT_NO_FATAL_FAILURE(expect_step(found->path, found->step)) << crash;
        if (done) {
          EXPECT_EQ(found->step, second);
        }
        // The next save works and clears up.
        save(3, 2, 1);
        EXPECT_EQ(find_latest(output_)->step, 3);
        EXPECT_EQ(folders(), std::vector<std::string>{"step-00000003"}) << crash;
      }
}

TEST_F(CheckpointTest, KilledProcessesLeaveACompleteCheckpoint) {
  save(1, 1);
  for (int round = 0; round < 12; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (std::int64_t step = 2;; ++step) save(step, 2, 2);
    }
    ::usleep(static_cast<useconds_t>(2000 + 1700 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto found = find_latest(output_);
    ASSERT_TRUE(found);
    ASSERT_NO_FATAL_FAILURE(expect_step(found->path, found->step));
  }
}

TEST_F(CheckpointTest, RotationKeepsTheNewest) {
  for (std::int64_t step = 1; step <= 5; ++step) save(step, 1, 2);
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000004", "step-00000005"}));
  // Resumed from an older one: what is saved now is the newest although its step is lower.
  save(3, 1, 2);
  EXPECT_EQ(find_latest(output_)->step, 3);
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000003", "step-00000005"}));
  save(6, 1, 0);
  EXPECT_EQ(folders().size(), 3u);
}

TEST_F(CheckpointTest, WhatIsNotCompleteIsPassedOverAndNamed) {
  save(1, 2);
  save(2, 2);
  save(3, 2);
  std::filesystem::remove(checkpoints_folder(output_) / "step-00000003/manifest.json");
  std::filesystem::resize_file(checkpoints_folder(output_) / "step-00000002" / "rank-00001-of-00002.safetensors", 100);
  std::filesystem::create_directories(checkpoints_folder(output_) / "step-00000009.tmp-x");
  std::filesystem::create_directories(checkpoints_folder(output_) / "step-x");
  const auto found = find_latest(output_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 1);
  ASSERT_EQ(found->skipped.size(), 2u);
  EXPECT_THAT(found->skipped[0], HasSubstr("step-00000003"));
  EXPECT_THAT(found->skipped[1], HasSubstr("100 bytes"));
  EXPECT_EQ(resolve(output_), found->path);
  EXPECT_EQ(resolve(found->path), found->path);
  EXPECT_THROW(resolve(output_ / "model"), Error);
}

TEST_F(CheckpointTest, EveryFlippedByteIsFound) {
  const auto folder = save(1, 2);
  EXPECT_EQ(verify(folder).files, 4);
  EXPECT_EQ(verify(folder, 0, 2).files + verify(folder, 1, 2).files, 4);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 5u);
  for (const auto& file : files) {
    const std::string good = read_file(file);
    for (std::size_t at = 0; at < good.size(); at += 1 + good.size() / 40) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      std::ofstream(file, std::ios::binary) << bad;
      if (file.filename() == "manifest.json" && (good[at] == ' ' || good[at] == '\n'))
        continue;  // white space says nothing
      try {
        verify(folder);
        ADD_FAILURE() << file << " byte " << at;
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_status, kExitFailed);
      }
    }
    std::ofstream(file, std::ios::binary) << good;
  }
  verify(folder);
}

TEST_F(CheckpointTest, FailedWritesSayWhereAndExitThirteen) {
  try {
    save(1, 1, 0, real_files());
    real_files().create(output_ / "no/such/folder");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status, 13);
    EXPECT_THAT(error.what(), HasSubstr("no/such/folder"));
  }
}

TEST_F(CheckpointTest, ExportsFromAnyNumberOfRanks) {
  for (const std::int64_t ranks : {1, 3}) {
    save(ranks, ranks);
    const auto target = output_ / ("export" + std::to_string(ranks));
    const Exported one = export_huggingface(real_files(), output_, target, {.states = true});
    EXPECT_EQ(one.tensors, 6);
    const SafetensorsFile file(target / "model.safetensors");
    EXPECT_EQ(file.tensors().size(), 6u);
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.find("lm_head.weight"), nullptr);
    EXPECT_EQ(file.find("proj.weight")->shape, (std::vector<std::int64_t>{3, 7}));
    std::vector<float> got(21);
    file.read_fp32("proj.weight", 0, got);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], value("block.0", Kind::kParameters, 4 + static_cast<std::int64_t>(i), ranks));
    const SafetensorsFile states(target / "states.safetensors");
    EXPECT_EQ(states.tensors().size(), 11u);
    states.read_fp32("proj.weight.exp_avg_sq", 0, got);
    EXPECT_EQ(got[20], value("block.0", Kind::kExpAvgSq, 24, ranks));
    std::int64_t step = 0;
    states.read_bytes("step", 0, std::as_writable_bytes(std::span(&step, 1)));
    EXPECT_EQ(step, ranks);
    const auto config = nlohmann::json::parse(read_file(target / "config.json"));
    EXPECT_EQ(config.at("torch_dtype"), "float32");
    EXPECT_EQ(config.at("own").at("kept"), 1);
    EXPECT_TRUE(std::filesystem::exists(target / "tokenizer.json"));
    EXPECT_THROW(export_huggingface(real_files(), output_, target), Error);
  }
  // Several files get an index, and no file is larger than asked unless one tensor is.
  const auto target = output_ / "many/parts";
  const Exported many = export_huggingface(real_files(), output_ / "checkpoints/step-00000003", target,
                                           {.storage = Storage::kBf16, .max_shard_bytes = 40});
  EXPECT_EQ(many.tensors, 6);
  const auto index = nlohmann::json::parse(read_file(target / "model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), 2 * (15 + 4 + 21 + 1 + 4));
  std::set<std::string> files;
  for (const auto& [name, file] : index.at("weight_map").items()) {
    files.insert(file.get<std::string>());
    EXPECT_NE(SafetensorsFile(target / file.get<std::string>()).find(name), nullptr);
  }
  EXPECT_EQ(files, (std::set<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                          "model-00003-of-00003.safetensors"}));
  EXPECT_EQ(nlohmann::json::parse(read_file(target / "config.json")).at("dtype"), "bfloat16");
}

TEST(Export, SizesAreReadAsHuggingFaceWritesThem) {
  EXPECT_EQ(parse_size("5GB", ""), 5'000'000'000);
  EXPECT_EQ(parse_size("2GiB", ""), std::int64_t{2} << 30);
  EXPECT_EQ(parse_size("1.5 MB", ""), 1'500'000);
  EXPECT_EQ(parse_size("1000000", ""), 1'000'000);
  for (const char* text : {"", "GB", "5XB", "-1GB", "0", "1e30GB", "nan", "5GB5"})
    EXPECT_THROW(parse_size(text, "--max-shard-size"), Error) << text;
}

TEST(Resumable, NamesTheKeyThatMayNotChange) {
  const nlohmann::json saved = nlohmann::json::parse(
      R"({"sequence_length": 64, "output": "a", "duration": {"steps": 10}, "method": {"kind": "full"},
    "train": {"learning_rate": 1e-3, "save_steps": 5, "seed": 42}, "data": {"train": ["x"]}})");
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json now = saved;
    now[nlohmann::json::json_pointer(pointer)] = value;
    try {
      check_resumable(saved.dump(), now.dump());
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status, kExitBadInput);
      return error.where;
    }
    return std::string("may");
  };
  for (const char* pointer : {"/output", "/train/learning_rate", "/train/save_steps", "/train/save_at",
                              "/train/logging_steps", "/train/eval_steps"})
    EXPECT_EQ(with(pointer, 7), "may");
  EXPECT_EQ(with("/duration", {{"epochs", 3}}), "may");
  EXPECT_EQ(with("/method", {{"kind", "partial"}, {"trainable", {"a"}}}), "may");
  for (const char* pointer : {"/sequence_length", "/train/seed", "/train/weight_decay", "/data/train", "/precision"})
    EXPECT_EQ(with(pointer, 7), pointer);
  EXPECT_EQ(with("/method", {{"kind", "lora"}}), "/method/kind");
}

}  // namespace
}  // namespace shardfit::checkpoint
