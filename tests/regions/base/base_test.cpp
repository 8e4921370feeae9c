#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/shorten.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit {
namespace {

std::string line_of(auto&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Shorten, CutsBetweenWordsAndNeverInsideACharacter) {
  EXPECT_EQ(shorten("as it is", 8), "as it is");
  EXPECT_EQ(shorten("unable to contact the controller", 20), "unable to ...");
  EXPECT_EQ(shorten("unable to contact", 14), "unable to ...");
  EXPECT_EQ(shorten("abcdefghij", 8), "abcd ...");
  EXPECT_EQ(shorten("ab\u00fc\u00fccdefgh", 9), "ab\u00fc ...");
  EXPECT_EQ(shorten("abcdefghij", 2), " .");
  for (std::size_t most = 0; most < 40; ++most)
    EXPECT_LE(shorten("one two three four five six seven eight", most).size(), most);
}

TEST(Json, UnknownKeyNamesTheNearest) {
  const Json j = parse_json(R"({"micro_bach": 2, /* note */ "x": 1})");
  ObjectReader r(j, "/plan");
  r.integer("micro_batch");
  r.integer("x");
  EXPECT_EQ(line_of([&] { r.finish(); }),
            "/plan/micro_bach: unknown key \"micro_bach\"; did you mean \"micro_batch\"?");
}

TEST(Json, NumbersAreCheckedForKindAndRange) {
  const Json j = parse_json(R"({"a": 2e9, "b": 1.5, "c": -1, "d": 1e300})");
  ObjectReader r(j, "");
  EXPECT_EQ(r.integer("a"), 2000000000);
  EXPECT_EQ(line_of([&] { r.integer("b"); }), "/b: a whole number is needed, not 1.5; write a whole number, e.g. 16");
  EXPECT_EQ(line_of([&] { r.integer("c"); }), "/c: -1 is out of range; it must be at least 0");
  EXPECT_NE(line_of([&] { r.integer("d"); }), "no error");
  EXPECT_EQ(r.integer("absent"), std::nullopt);
}

TEST(Json, SyntaxErrorsNameLineAndColumn) {
  EXPECT_NE(line_of([] { parse_json("{\n \"a\": }", "job.json"); }).find("job.json: line 2, column"),
            std::string::npos);
  EXPECT_NE(line_of([] { parse_json(std::string(100000, '[')); }).find("nested deeper"), std::string::npos);
}

TEST(Text, Durations) {
  EXPECT_EQ(parse_duration("12h", ""), 43200);
  EXPECT_EQ(parse_duration("1h30m", ""), 5400);
  EXPECT_EQ(parse_duration("90", ""), 90);
  EXPECT_EQ(parse_duration("1-02:00:00", ""), 93600);
  EXPECT_EQ(parse_duration("05:00", ""), 300);
  EXPECT_NE(line_of([] { parse_duration("soon", "/deadline"); }).find("/deadline: duration \"soon\""),
            std::string::npos);
  EXPECT_NE(line_of([] { parse_duration("-5h", "/deadline"); }), "no error");
}

TEST(Time, VagueDatesMeanTheirEarliestDay) {
  EXPECT_EQ(format_time(*parse_time("2026")), "2026-01-01T00:00:00Z");
  EXPECT_EQ(format_time(*parse_time("2024 (inferred)")), "2024-01-01T00:00:00Z");
  EXPECT_EQ(format_time(*parse_time("2025-2026")), "2025-01-01T00:00:00Z");
  EXPECT_FALSE(parse_time("2026-2025"));
  EXPECT_EQ(format_time(*parse_time("2026-08-22T10:00:00+02:00")), "2026-08-22T08:00:00Z");
  EXPECT_EQ(format_date(*parse_time("2026-08-22")), "2026-08-22");
  EXPECT_FALSE(parse_time("yesterday"));
  EXPECT_FALSE(parse_time("2026-02-30"));
}

TEST(Files, Sha256OfKnownTexts) {  // FIPS 180-4 examples
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Files, AtomicWriteReplacesAndMissingFileIsNamed) {
  const auto path = std::filesystem::temp_directory_path() / "shardfit_files_test.txt";
  write_file_atomic(path, "one");
  write_file_atomic(path, "two");
  EXPECT_EQ(read_file(path), "two");
  std::filesystem::remove(path);
  EXPECT_EQ(line_of([&] { read_file(path); }), path.string() + ": no such file; check the path");
}

}  // namespace
}  // namespace shardfit
