#include "plugin/spank/request.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "plugin/spank/protocol.hpp"

namespace shardfit::spank {
namespace {

TEST(DecideTimeout, IsFoundWithoutAJsonParser) {
  EXPECT_EQ(decide_timeout("{\"decide_timeout_seconds\": 5}"), 5);
  EXPECT_EQ(decide_timeout("{\"a\": \"x\\\"y\",\n  \"decide_timeout_seconds\" : 0.5, \"b\": 1}"), 0.5);
  EXPECT_EQ(decide_timeout("{// \"decide_timeout_seconds\": 7\n}"), 3);
  EXPECT_EQ(decide_timeout("{/* \"decide_timeout_seconds\": 7 */ \"decide_timeout_seconds\": 8}"), 8);
  EXPECT_EQ(decide_timeout("{\"note\": \"// not a comment\", \"decide_timeout_seconds\": 9}"), 9);
  for (const char* odd : {"", "{", "\"decide_timeout_seconds\"", "{\"decide_timeout_seconds\": \"x\"}",
                          "{\"decide_timeout_seconds\": -1}", "{\"decide_timeout_seconds\": 1e9}", "/*", "\"\\"}) {
    EXPECT_EQ(decide_timeout(odd), 3) << odd;
  }
}

TEST(Settings, AreReadStrictly) {
  char a[] = "shardfit=/x", b[] = "conf=/y", c[] = "timeout=1.5", d[] = "oops=1", e[] = "timeout=soon";
  char* words[] = {a, b, c};
  const auto s = parse_settings(3, words);
  EXPECT_EQ(s.shardfit, "/x");
  EXPECT_EQ(s.conf, "/y");
  EXPECT_EQ(s.timeout_seconds, 1.5);
  EXPECT_EQ(s.unknown, "");
  char* odd[] = {d};
  EXPECT_EQ(parse_settings(1, odd).unknown, "oops=1");
  char* bad[] = {e};
  EXPECT_EQ(parse_settings(1, bad).unknown, "timeout=soon");
}

TEST(FindShardfit, PrefersTheNamedOneThenThePluginsFolders) {
  const auto root = std::filesystem::temp_directory_path() / ("shardfit_find_" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "lib/slurm");
  std::filesystem::create_directories(root / "bin");
  std::ofstream(root / "bin/shardfit") << "#!/bin/sh\n";
  ::chmod((root / "bin/shardfit").c_str(), 0755);
  std::string looked;
  EXPECT_EQ(find_shardfit({}, (root / "lib/slurm/spank_shardfit.so").string(), looked),
            (root / "lib/slurm/../../bin/shardfit").string());
  Settings named;
  named.shardfit = "/nonexistent/shardfit";
  EXPECT_EQ(find_shardfit(named, (root / "lib/slurm/spank_shardfit.so").string(), looked),
            "");  // the named one or none
  EXPECT_EQ(looked, "/nonexistent/shardfit");
  std::filesystem::remove_all(root);
}

TEST(Request, NamesAStrayOption) {
  Request r;
  EXPECT_EQ(r.stray(), "");
  r.given[kHwJob] = 1;
  r.from_env[kHwJob] = 1;
  EXPECT_EQ(r.stray(), "");  // a default from the environment waits for --hw
  r.given[kHwJob] = 2;
  EXPECT_EQ(r.stray(), "hw-job");
  r.given[kHw] = 1;
  EXPECT_EQ(r.stray(), "");
}

TEST(Protocol, ReadsAWholeAnswer) {
  Answer a;
  std::string why;
  ASSERT_TRUE(parse_answer(
      "shardfit-decide 1\nsay one\nsay\nset partition p1\nset mem 500M\ndefault time 01:00:00\nenv SHARDFIT_PLAN /a b/c\ncontrol SHARDFIT_PINS residency(EU|CH)&sovereign\nend 0\n",
      a, why))
      << why;
  EXPECT_EQ(a.text, "one\n\n");
  EXPECT_EQ(a.set, (Pairs{{"partition", "p1"}, {"mem", "500M"}}));
  EXPECT_EQ(a.defaults, (Pairs{{"time", "01:00:00"}}));
  EXPECT_EQ(a.env, (Pairs{{"SHARDFIT_PLAN", "/a b/c"}}));
  EXPECT_EQ(a.control, (Pairs{{"SHARDFIT_PINS", "residency(EU|CH)&sovereign"}}));
  EXPECT_EQ(a.status, 0);
}

TEST(Protocol, RefusesAnythingElse) {
  for (const char* text :
       {"", "shardfit-decide 2\nend 0\n", "shardfit-decide 1\n", "shardfit-decide 1\nend 0",
        "shardfit-decide 1\nend 0\nsay x\n", "shardfit-decide 1\nend 9\n", "shardfit-decide 1\nset wrap x\nend 0\n",
        "shardfit-decide 1\nset partition\nend 0\n", "shardfit-decide 1\nenv LD_PRELOAD x\nend 0\n",
        "shardfit-decide 1\nenv SHARDFIT_a x\nend 0\n", "shardfit-decide 1\nrun me\nend 0\n"}) {
    Answer a;
    std::string why;
    EXPECT_FALSE(parse_answer(text, a, why)) << text;
    EXPECT_NE(why, "") << text;
  }
}

}  // namespace
}  // namespace shardfit::spank
