// Measured rates: their file form, their store, and the probe process, played by a shell script.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fake_rates.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/calibrate/calibration.hpp"

namespace shardfit::calibrate {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/shardfit-calibrate-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  std::string script(const std::string& body) const {
    const fs::path file = path_ / "probe.sh";
    std::ofstream(file) << "#!/bin/sh\n" << body << "\n";
    chmod(file.c_str(), 0755);
    return file.string();
  }

 private:
  fs::path path_;
};

// What a thrown Error says; "" when nothing is thrown.
template <typename Work>
std::string complaint(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "";
}

Json record() { return Json::parse(to_json(fake_rates()).dump()); }

TEST(Rates, RoundTrip) {
  const Json once = record();
  EXPECT_EQ(Json::parse(to_json(parse_rates(once)).dump()), once);
  const BusyRates read = parse_rates(once);
  EXPECT_EQ(read.gemms.size(), 12u);
  EXPECT_DOUBLE_EQ(read.rms_norm.backward, 2e-10);
  EXPECT_EQ(read.compute_factor, 1);
}

TEST(Rates, DamagedRecordsAreNamed) {
  const auto with = [](const std::string& pointer, const Json& value) {
    Json r = record();
    r[Json::json_pointer(pointer)] = value;
    return complaint([&] { parse_rates(r); });
  };
  EXPECT_THAT(with("/gemm/0/3", -1.0), HasSubstr("/gemm/0/3"));
  EXPECT_THAT(with("/gemm/0/3", 0), HasSubstr("above 0"));
  EXPECT_THAT(with("/gemm/0", Json::array({1, 2})), HasSubstr("6 numbers"));
  EXPECT_THAT(with("/gemm", Json::array()), HasSubstr("no matrix product"));
  EXPECT_THAT(with("/attention", Json::array()), HasSubstr("no attention"));
  EXPECT_THAT(with("/all_gather", Json::array()), HasSubstr("no collective"));
  EXPECT_THAT(with("/all_gather", Json::parse("[[2,1],[1,1]]")), HasSubstr("ascend"));
  EXPECT_THAT(with("/adamw", "fast"), HasSubstr("/adamw"));
  EXPECT_THAT(with("/ranks", 0), HasSubstr("/ranks"));
  EXPECT_THAT(with("/type", "fp64"), HasSubstr("fp64"));
  EXPECT_THAT(with("/adamv", 1), HasSubstr("adamw"));  // the nearest known key
}

// A step of a small model that took half as long again as its products, elements and transfers say.
TEST(Rates, FactorsComeFromMeasuredSteps) {
  Json r = record();
  const Json config = {{"model_type", "llama"},  {"architectures", {"LlamaForCausalLM"}},
                       {"hidden_size", 256},     {"intermediate_size", 1024},
                       {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                       {"vocab_size", 1024},     {"max_position_embeddings", 256},
                       {"rms_norm_eps", 1e-5},   {"tie_word_embeddings", true}};
  Json step = {{"config", config}, {"sequence", 128}, {"micro_batch", 1}, {"stage", 3}};
  step["seconds"] = {{"compute", 1e-9}, {"communication", 1e-9}, {"update", 1e9}};
  r["steps"] = Json::array({step});
  EXPECT_NE(complaint([&] { parse_rates(r); }), "");  // 1e9 s is no measurement
  step["seconds"]["update"] = 100;
  r["steps"] = Json::array({step});
  const BusyRates absurd = parse_rates(r);
  EXPECT_EQ(absurd.compute_factor, 0.5);  // clamped: the measurement was disturbed
  EXPECT_EQ(absurd.update_factor, 2);
  // Products of a token: 2 blocks x (4 of 256 x 256 + 3 of 256 x 1024) + 256 x 1024 of the head, at 100, 80 and 50
  // GFLOP/s.
  const double products =
      2 * 128 * (2 * (4 * 256 * 256 + 3 * 256 * 1024) + 256 * 1024) * (1 / 100e9 + 1 / 80e9 + 1 / 50e9);
  step["seconds"] = {{"compute", 1.5 * products}, {"communication", 1}, {"update", 1e-3}};
  r["steps"] = Json::array({step});
  const BusyRates fitted = parse_rates(r);
  EXPECT_GT(fitted.compute_factor, 1.2);  // other kernels take some of the half
  EXPECT_LT(fitted.compute_factor, 1.5);
  step["config"] = {{"model_type", "llama"}};
  r["steps"] = Json::array({step});
  EXPECT_NE(complaint([&] { parse_rates(r); }), "");
}

TEST(Store, KeepsOneRecordForEachRanksThreadsAndType) {
  const Folder folder;
  const Machine machine{.cpu = "Test CPU", .cores = 2, .usable = 2};
  const std::vector<fs::path> folders = {folder.path() / "deep" / "er"};
  EXPECT_FALSE(load_calibration(folders, machine));
  BusyRates rates = fake_rates();
  store_rates(folders[0], machine, rates);
  rates.adamw = 7e-10;
  rates.as_of = "2026-08-23T10:00:00Z";
  store_rates(folders[0], machine, rates);  // measured again
  store_rates(folders[0], machine, fake_rates(1, 2));
  rates.type = "bf16";
  store_rates(folders[0], machine, rates);
  const auto loaded = load_calibration(folders, machine);
  ASSERT_TRUE(loaded);
  ASSERT_EQ(loaded->rates.size(), 3u);
  bool exact = false;
  EXPECT_DOUBLE_EQ(loaded->find(2, 1, "fp32", exact)->adamw, 7e-10);
  EXPECT_TRUE(exact);
  EXPECT_EQ(loaded->find(2, 0, "fp32", exact)->threads, 1);  // all cores over the ranks
  EXPECT_TRUE(exact);
  EXPECT_EQ(loaded->find(1, 0, "fp32", exact)->threads, 2);
  EXPECT_EQ(loaded->find(4, 1, "fp32", exact)->ranks, 2);
  EXPECT_FALSE(exact);
  EXPECT_EQ(loaded->find(1, 2, "bf16", exact)->type, "bf16");
  EXPECT_FALSE(exact);
  EXPECT_FALSE(load_calibration(folders, {.cpu = "Other CPU", .cores = 2, .usable = 2}));
  EXPECT_FALSE(load_calibration(folders, {.cpu = "Test CPU", .cores = 4, .usable = 4}));
}

TEST(Store, TheNewestOfSeveralFoldersCounts) {
  const Folder site, own;
  const Machine machine{.cpu = "Test CPU", .cores = 2, .usable = 2};
  BusyRates old = fake_rates(), young = fake_rates();
  young.as_of = "2026-09-01T00:00:00Z";
  young.adamw = 9e-10;
  store_rates(site.path(), machine, young);
  store_rates(own.path(), machine, old);
  const auto loaded = load_calibration({site.path(), own.path()}, machine);
  ASSERT_TRUE(loaded);
  ASSERT_EQ(loaded->rates.size(), 1u);
  EXPECT_DOUBLE_EQ(loaded->rates[0].adamw, 9e-10);
}

TEST(Store, ADamagedDatabaseCountsAsEmptyAndIsNotOverwritten) {
  const Folder folder;
  const Machine machine{.cpu = "Test CPU", .cores = 2, .usable = 2};
  std::ofstream(folder.path() / "calibration.sqlite")
      << "not a database, but long enough to be read as one if nobody looked at its first bytes";
  EXPECT_FALSE(load_calibration({folder.path()}, machine));
  EXPECT_THAT(complaint([&] { store_rates(folder.path(), machine, fake_rates()); }), HasSubstr("state_unwritable"));
}

TEST(Store, StateFolders) {
  setenv("SHARDFIT_STATE_DIR", "/somewhere", 1);
  EXPECT_THAT(state_folders("/var/lib/shardfit"), testing::ElementsAre("/somewhere"));
  unsetenv("SHARDFIT_STATE_DIR");
  setenv("XDG_STATE_HOME", "/home/u/state", 1);
  EXPECT_THAT(state_folders("/var/lib/shardfit"), testing::ElementsAre("/var/lib/shardfit", "/home/u/state/shardfit"));
  unsetenv("XDG_STATE_HOME");
}

TEST(Machine, IsNamed) {
  const Machine machine = this_machine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_GE(machine.cores, machine.usable);
  EXPECT_GE(machine.usable, 1);
}

TEST(RunProbe, ReadsTheLastLine) {
  const Folder folder;
  const std::string script =
      folder.script("echo 'measuring' >&2\necho 'some talk'\necho \"$@\" > " + (folder.path() / "words").string() +
                    "\ncat <<'X'\n" + to_json(fake_rates()).dump() + "\nX");
  const BusyRates rates =
      run_probe({.ranks = 2, .threads = 1, .type = "fp32", .quick = true, .deadline_seconds = 20, .program = script});
  EXPECT_EQ(rates.gemms.size(), 12u);
  std::ifstream words(folder.path() / "words");
  std::string line;
  std::getline(words, line);
  EXPECT_EQ(line, "--probe rates --ranks 2 --threads 1 --type fp32 --quick");
}

TEST(RunProbe, FailuresAreToldInOneLine) {
  const Folder folder;
  const auto run = [&](const std::string& body, double deadline = 20) {
    const std::string script = folder.script(body);
    return complaint([&] { run_probe({.deadline_seconds = deadline, .program = script}); });
  };
  EXPECT_THAT(run("echo 'no LibTorch here' >&2\nexit 3"),
              testing::AllOf(HasSubstr("probe_failed"), HasSubstr("no LibTorch here")));
  EXPECT_THAT(run("kill -9 $$"), HasSubstr("probe_failed"));
  EXPECT_NE(run("echo '{\"ranks\": 1'"), "");
  EXPECT_NE(run("true"), "");
  EXPECT_THAT(complaint([] { run_probe({.program = "/nowhere/shardfit-train"}); }), HasSubstr("probe_missing"));
}

TEST(RunProbe, ADeadlineEndsItAndItsChildren) {
  const Folder folder;
  const std::string script = folder.script("sleep 600 &\necho $! > " + (folder.path() / "child").string() + "\nwait");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(complaint([&] { run_probe({.deadline_seconds = 0.5, .program = script}); }), HasSubstr("probe_timeout"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  std::ifstream file(folder.path() / "child");
  pid_t child = 0;
  ASSERT_TRUE(file >> child);
  // Gone, or a corpse that nobody has buried yet.
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string number, name, state;
    gone = !(stat >> number >> name >> state) || state == "Z";
    if (!gone) usleep(10000);
  }
  EXPECT_TRUE(gone);
}

}  // namespace
}  // namespace shardfit::calibrate
