#include "plugin/spank/child.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <chrono>

namespace shardfit::spank {
namespace {

using End = ChildResult::End;

ChildResult shell(const std::string& script, double deadline = 10) {
  return run_child({"/bin/sh", "-c", script}, {}, deadline);
}

TEST(Child, CollectsOutputAndStatus) {
  const auto r = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(r.end, End::kExited);
  EXPECT_EQ(r.status, 3);
  EXPECT_EQ(r.out, "out\n");
  EXPECT_EQ(r.err, "err\n");
}

TEST(Child, HasAnEmptyInputOrTheGivenOne) {
  EXPECT_EQ(shell("wc -c").out, "0\n");
  EXPECT_EQ(run_child({"/bin/cat"}, {}, 10, "a line\n").out, "a line\n");
}

TEST(Child, EnvironmentReplaces) {
  ::setenv("SHARDFIT_TEST_A", "old", 1);
  const auto r = run_child({"/bin/sh", "-c", "echo $SHARDFIT_TEST_A $SHARDFIT_TEST_B"},
                           {"SHARDFIT_TEST_A=new", "SHARDFIT_TEST_B=b"}, 10);
  EXPECT_EQ(r.out, "new b\n");
}

TEST(Child, TellsASignal) {
  const auto r = shell("kill -SEGV $$");
  EXPECT_EQ(r.end, End::kSignalled);
  EXPECT_EQ(r.status, SIGSEGV);
}

TEST(Child, TellsAFailedStart) {
  const auto r = run_child({"/nonexistent/program"}, {}, 10);
  EXPECT_EQ(r.end, End::kNotStarted);
  EXPECT_EQ(r.status, ENOENT);
  EXPECT_EQ(run_child({}, {}, 10).end, End::kNotStarted);
  EXPECT_EQ(run_child({"/bin/cat"}, {}, 10, std::string(kChildInputLimit + 1, 'x')).end, End::kNotStarted);
}

// Also a grandchild that keeps the pipes open and a child that ignores signals end with the deadline.
TEST(Child, EndsAtTheDeadline) {
  for (const char* script :
       {"sleep 60", "sleep 60 & exit 0", "trap '' TERM INT HUP; sleep 60; sleep 60", "exec >&- 2>&-; sleep 60"}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto r = shell(script, 0.2);
    EXPECT_EQ(r.end, End::kTimedOut) << script;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << script;
  }
}

TEST(Child, CutsEndlessOutput) {
  const auto r = run_child({"/bin/sh", "-c", "head -c 300000 /dev/zero"}, {}, 10, "", 1000);
  EXPECT_EQ(r.end, End::kExited);
  EXPECT_TRUE(r.output_cut);
  EXPECT_EQ(r.out.size(), 1000u);
}

}  // namespace
}  // namespace shardfit::spank
