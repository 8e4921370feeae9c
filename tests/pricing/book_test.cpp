// The price book: import, history, publication, and what the shipped snapshot answers.
#include "pricing/book.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "pricing/gpu_types.hpp"
#include "pricing/validators.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

namespace fs = std::filesystem;

const GpuTypes& types() {
  static const GpuTypes t =
      GpuTypes::parse(read_json_file(SHARDFIT_SOURCE_DIR "/selector/hardware/data/hardware.json"));
  return t;
}

class BookTest : public testing::Test {
 protected:
  fs::path dir_ = fs::temp_directory_path() / ("shardfit_book_" + std::to_string(::getpid()) + "_" +
                                               testing::UnitTest::GetInstance()->current_test_info()->name());
  ~BookTest() override { fs::remove_all(dir_); }

  std::vector<PriceRow> rows(const char* price, const char* date) {
    auto list = read_feed_file(
        std::string(
            "provider,instance_sku,gpu_type,gpu_count,gpu_mem,vcpus,ram_gib,local_nvme_gb,region,country,currency,on_demand_per_hour,spot_per_hour,egress_per_gb,date,source,quality,note\n") +
            "Verda,1H100,H100 SXM,1,80,22,120,,FIN-02,FI,USD," + price + ",,0," + date + ",test,A,\n",
        "test", "");
    judge(list, {.types = &types(), .check_age = false});
    return {list[0].row};
  }
  ImportCounts import(const char* price, const char* date, const char* now) {
    return import_rows(dir_.string(), rows(price, date), *parse_time(now), &types());
  }
  Book open() { return Book::open(dir_.string(), &types()); }
};

TEST_F(BookTest, ShippedSnapshotAnswers) {
  const Book b = open();
  EXPECT_EQ(b.source(), "shipped snapshot");
  const auto found = b.find({.provider = "oci", .instance = "BM.GPU.H100.8", .region = "oci/eu-zurich-1", .gpu = ""});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]->on_demand_per_hour, 80);
  EXPECT_EQ(b.find({.provider = "Oracle OCI", .instance = "", .region = "eu-zurich-1", .gpu = "h100_sxm_80gb"}).size(),
            1u);
  EXPECT_EQ(b.find({.provider = "nobody", .instance = "", .region = "", .gpu = ""}).size(), 0u);
}

TEST_F(BookTest, ImportAddsToTheSnapshotAndKeepsHistory) {
  const auto first = import("2.49", "2026-09-01", "2026-09-01T12:00:00Z");
  EXPECT_EQ(first.added, 1);
  const auto second = import("2.59", "2026-10-01", "2026-10-01T12:00:00Z");
  EXPECT_EQ(second.added, 1);
  EXPECT_EQ(import("2.59", "2026-10-01", "2026-10-02").known, 1) << "the same row is not booked twice";
  const BookQuery q{.provider = "verda", .instance = "1H100", .region = "FIN-02", .gpu = ""};
  const Book b = open();
  EXPECT_EQ(b.rows().size(), 313u) << "one row a key: AWS p5en in us-east-1 stands in the snapshot with two dates";
  ASSERT_EQ(b.find(q).size(), 1u);
  EXPECT_EQ(b.find(q)[0]->on_demand_per_hour, 2.59);
  const auto history = b.history(q);
  ASSERT_EQ(history.size(), 3u);
  EXPECT_EQ(history[0].on_demand_per_hour, 2.29);
  EXPECT_EQ(history[0].imported_at, "") << "shipped";
  EXPECT_EQ(history[1].on_demand_per_hour, 2.49);
  EXPECT_EQ(history[1].imported_at, "2026-09-01T12:00:00Z");
  EXPECT_EQ(history[2].as_of, "2026-10-01");
}

TEST_F(BookTest, AnOlderRowImportedLaterDoesNotWin) {
  import("2.59", "2026-10-01", "2026-10-01");
  import("1.99", "2026-05-01", "2026-10-02");
  EXPECT_EQ(
      open().find({.provider = "verda", .instance = "1H100", .region = "FIN-02", .gpu = ""})[0]->on_demand_per_hour,
      2.59);
}

TEST_F(BookTest, ReadersSeeTheBookTheyOpened) {
  import("2.59", "2026-10-01", "2026-10-01");
  const Book before = open();
  EXPECT_EQ(before.rows().size(), 313u);
  import("2.69", "2026-11-01", "2026-11-01");
  EXPECT_EQ(
      before.find({.provider = "verda", .instance = "1H100", .region = "FIN-02", .gpu = ""})[0]->on_demand_per_hour,
      2.59);
  for (const auto& f : fs::directory_iterator(dir_))
    EXPECT_TRUE(f.path().filename() == "prices.db" || f.path().filename() == "prices.lock") << f.path();
}

TEST_F(BookTest, TwoImportsAtOnceBothArrive) {
  std::thread other([&] { import("2.59", "2026-10-01", "2026-10-01"); });
  import("2.69", "2026-11-01", "2026-11-01");
  other.join();
  EXPECT_EQ(open().history({.provider = "verda", .instance = "1H100", .region = "FIN-02", .gpu = ""}).size(), 3u);
}

TEST_F(BookTest, WhatIsNoDatabaseIsOneError) {
  fs::create_directories(dir_);
  std::ofstream(dir_ / "prices.db")
      << "this is no database, and long enough that sqlite would look at it as one if it were..............";
  try {
    open().rows();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, "database");
    EXPECT_EQ(e.file, (dir_ / "prices.db").string());
  }
}

}  // namespace
}  // namespace shardfit::pricing
