#include "plugin/doctor/checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace shardfit::doctor {
namespace {

using testing::HasSubstr;

TEST(ParseConfig, ReadsWhatScontrolPrints) {
  auto c = parse_config(
      "Configuration data as of 2026-01-01T00:00:00\nCliFilterPlugins        = lua,shardfit\nPlugStackConfig         = (null)\nSLURM_CONF              = /etc/slurm/slurm.conf\nnonsense\n");
  EXPECT_EQ(c["CliFilterPlugins"], "lua,shardfit");
  EXPECT_EQ(c["PlugStackConfig"], "");
  EXPECT_EQ(c["SLURM_CONF"], "/etc/slurm/slurm.conf");
}

class PlugstackTest : public testing::Test {
 protected:
  std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("shardfit_doctor_" + std::to_string(::getpid()));
  std::string so_ = (root_ / "spank_shardfit.so").string();
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  static bool has(const std::vector<Finding>& findings, Level level, const std::string& text) {
    for (const auto& f : findings) {
      if (f.level == level && f.message.find(text) != std::string::npos && (level == Level::kGood || !f.remedy.empty()))
        return true;
    }
    return false;
  }
};

TEST_F(PlugstackTest, MissingLineAndMissingFile) {
  EXPECT_TRUE(
      has(check_plugstack("# required /x/spank_shardfit.so\nrequired /y/other.so\n", "plugstack.conf", "22.05.8"),
          Level::kBad, "does not load"));
  EXPECT_TRUE(has(check_plugstack("required " + so_ + "\n", "plugstack.conf", "22.05.8"), Level::kBad,
                  "does not exist: sbatch and slurmd refuse to start"));
}

TEST_F(PlugstackTest, NotASharedObjectOddArgumentsAndTwoLines) {
  std::ofstream(so_) << "text";
  const auto f = check_plugstack("required " + so_ + " shardfit=/nonexistent/x oops\noptional " + so_ + "\n",
                                 "plugstack.conf", "22.05.8");
  EXPECT_TRUE(has(f, Level::kBad, "cannot be loaded"));
  EXPECT_TRUE(has(f, Level::kBad, "\"oops\""));
  EXPECT_TRUE(has(f, Level::kBad, "finds no program shardfit"));
  EXPECT_TRUE(has(f, Level::kBad, "more than once"));
}

TEST_F(PlugstackTest, FindsTheProgramBesideThePlugin) {
  std::ofstream(so_) << "text";
  std::ofstream(root_ / "shardfit") << "#!/bin/sh\n";
  ::chmod((root_ / "shardfit").c_str(), 0755);
  EXPECT_TRUE(has(check_plugstack("required " + so_ + "\n", "plugstack.conf", ""), Level::kGood,
                  (root_ / "shardfit").string()));
}

}  // namespace
}  // namespace shardfit::doctor
