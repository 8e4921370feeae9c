// regions, prices, offers, ledger and report as users run them, over a site file of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace shardfit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;

struct Ran {
  int status = -1;
  std::string out, err;
};

class Market : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("shardfit_market_" + std::to_string(::getpid()) + "_" +
                                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_ / "regions.d");
    write(
        "regions.d/own.json",
        R"({"id": "own/berlin", "country": "DE", "city": "Berlin", "operator_country": "DE", "parent_chain": [], "us_affiliate": false})");
    // clang-format off
    write("site.json", Json{{"cluster", "c1"}, {"currency", "EUR"}, {"state_dir", (folder_ / "state").string()}, {"spool", (folder_ / "jobs.ndjson").string()}, {"regions_dir", (folder_ / "regions.d").string()},
                            {"gpu_names", {{"h100", "h100_sxm_80gb"}}},
                            {"partitions", {{"h100", {{"region", "verda/FIN-02"}, {"price", {{"provider", "verda"}, {"instance", "1H100"}}}}}, {"cpu", {{"region", "own/berlin"}, {"gpu", "cpu"}, {"price", {{"amount", 0.4}, {"currency", "EUR"}}}}}}}}
                           .dump());
    // clang-format on
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  Ran run(const std::string& arguments) {
    const auto out = (folder_ / "stdout").string(), err = (folder_ / "stderr").string();
    const int status =
        std::system(("SHARDFIT_CONF=" + (folder_ / "site.json").string() +
                     " timeout 60 " SHARDFIT_BIN_DIR "/shardfit " + arguments + " </dev/null >" + out + " 2>" + err)
                        .c_str());
    const auto text = [](const std::string& path) {
      std::ostringstream s;
      s << std::ifstream(path).rdbuf();
      return s.str();
    };
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text(out), text(err)};
  }

  fs::path folder_;
};

TEST_F(Market, RegionsCheckTellsEveryField) {
  const auto passes = run("regions check own/berlin 'eu-sovereign;city(Berlin)' 'evidence(site)' --json");
  EXPECT_EQ(passes.status, 0) << passes.err;
  const auto j = Json::parse(passes.out);
  EXPECT_TRUE(j["passes"]);
  ASSERT_EQ(j["fields"].size(), 6u);
  for (const auto& f : j["fields"])
    EXPECT_TRUE(f.contains("name") && f.contains("value") && f["ok"] == true && f["evidence"] == "site" &&
                f.contains("as_of"))
        << f;
  const auto fails = run("regions check aws/eu-north-1 eu-sovereign --json");
  EXPECT_EQ(fails.status, 0);
  EXPECT_EQ(Json::parse(fails.out)["rule"], "sovereign");
  EXPECT_EQ(run("regions check verda/FIN-3 sovereign").status, 2);
  EXPECT_THAT(run("regions check verda/FIN-03 souvereign").err, HasSubstr("did you mean sovereign"));
  EXPECT_THAT(run("regions list --pin 'city(Berlin)'").out, HasSubstr("own/berlin"));
  EXPECT_THAT(run("regions show own/berlin").out, HasSubstr("site"));
}

TEST_F(Market, PolicyCheckNamesGpusThatTheHardwareTableLacks) {
  auto site = Json::parse(std::ifstream(folder_ / "site.json"));
  EXPECT_THAT(run("policy check").out, ::testing::Not(::testing::HasSubstr("unknown GPU")));
  site["partitions"]["h100"]["gpu"] = "h1000_sxm_80gb";
  site["gpu_names"]["big"] = "nothing_like_it";
  write("site.json", site.dump());
  const auto ran = run("policy check");
  EXPECT_THAT(ran.out, ::testing::HasSubstr("warning: partition h100: unknown GPU \"h1000_sxm_80gb\""));
  EXPECT_THAT(ran.out, ::testing::HasSubstr("warning: gpu_names/big: unknown GPU \"nothing_like_it\""));
}

TEST_F(Market, PricesCheckImportAndList) {
  const auto check = run("prices check " SHARDFIT_SOURCE_DIR "/tests/pricing/data/bad_prices.jsonl --json");
  EXPECT_EQ(check.status, 0);
  const auto first = Json::parse(check.out.substr(0, check.out.find('\n')));
  EXPECT_EQ(first["id"], "B01");
  EXPECT_EQ(first["verdict"], "rejected");
  EXPECT_EQ(first["rules"], Json({"gpu_fraction"}));
  const auto csv = write(
      "new.csv",
      "provider,instance_sku,gpu_type,gpu_count,gpu_mem,vcpus,ram_gib,local_nvme_gb,region,country,currency,on_demand_per_hour,spot_per_hour,egress_per_gb,date,source,quality,note\n"
      "Verda,1H100,H100 SXM,1,80,22,120,,FIN-02,FI,USD,2.50,,0,2026-11-28,feed,A,\n");
  EXPECT_EQ(Json::parse(run("prices import " + csv + " --json").out)["added"], 1);
  EXPECT_EQ(Json::parse(run("prices import " + csv + " --json").out)["added"], 0);
  EXPECT_EQ(
      Json::parse(
          run("prices list --provider verda --instance 1H100 --region FIN-02 --json").out)[0]["on_demand_per_hour"],
      2.5);
  EXPECT_EQ(
      Json::parse(run("prices list --provider verda --instance 1H100 --region FIN-02 --history --json").out).size(),
      2u);
  EXPECT_THAT(run("prices update").err, HasSubstr("prices import"));
  EXPECT_EQ(run("prices update").status, 2);
  EXPECT_EQ(run("prices import /nonexistent.csv").status, 2);
}

TEST_F(Market, OffersCanBeReadBackByPlan) {
  const auto inventory = write(
      "inventory.json",
      R"({"cluster": "c1", "nodes": [{"name": "h", "gpus": [{"type": "h100", "count": 8}], "cpus": 176, "memory_mib": 1500000}, {"name": "b", "cpus": 2, "memory_mib": 8192}],
    "partitions": [{"name": "h100", "nodes": ["h"]}, {"name": "cpu", "nodes": ["b"]}]})");
  const auto table = run("offers --inventory " + inventory + " --pin eu-sovereign --now 2026-01-02");
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("8 x h100_sxm_80gb"));
  EXPECT_THAT(table.out, HasSubstr("18.32 USD/node h"));
  const auto json = run("offers --inventory " + inventory + " --json");
  ASSERT_EQ(Json::parse(json.out)["offers"].size(), 2u);
  const auto
      offers = write("offers.json", json.out),
      job = write(
          "job.json",
          R"({"model": ")" SHARDFIT_SOURCE_DIR
          R"(/tests/truth/configs/meta-llama__Meta-Llama-3-8B.json", "sequence_length": 4096, "global_batch_sequences": 64, "duration": {"tokens": 2e8}, "framework": {"name": "fsdp2"}})");
  const auto plan = run("plan " + job + " --offers " + offers + " --gpu h100_sxm_80gb --json");
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_EQ(Json::parse(plan.out)["chosen"]["offer"], "c1/h100");
}

TEST_F(Market, LedgerAndReport) {
  const std::string line =
      R"({"v":1,"cluster":"c1","job_id":7,"job_state":3,"submit_time":1795953500,"start_time":1795953600,"end_time":1795957200,"partition":"h100","nodes":"h","total_nodes":1,"total_cpus":88,"gres_used":"gpu:h100:8","tres_fmt_alloc_str":"cpu=88","spank_job_env":[],"user_name":"ada","account":"lab"})";
  write("jobs.ndjson", line + "\n");
  EXPECT_EQ(Json::parse(run("ledger import --json").out)["booked"], 1);
  const auto again = run("ledger import --json");
  EXPECT_EQ(again.status, 0);
  EXPECT_EQ(Json::parse(again.out)["known"], 1);
  const auto report = Json::parse(run("report --format json").out);
  ASSERT_EQ(report["records"].size(), 1u);
  EXPECT_NEAR(report["records"][0]["cost"]["amount"].get<double>(), 8 * 2.29 / 1.0389, 1e-6);
  EXPECT_THAT(run("report 7").out, HasSubstr("Job 7 on c1: COMPLETED"));
  EXPECT_THAT(run("report --by user --format csv").out, HasSubstr("ada,1,1,8,"));
  EXPECT_EQ(run("report -o " + (folder_ / "r.csv").string() + " --format csv").out, "");
  EXPECT_TRUE(fs::exists(folder_ / "r.csv"));
  EXPECT_EQ(run("report --format html").status, 2);
  EXPECT_EQ(run("report 99").status, 2);
  EXPECT_EQ(run("report --since never").status, 2);
  write("jobs.ndjson", line + "\n{broken\n");
  EXPECT_EQ(run("ledger import").status, 1);
}

}  // namespace
}  // namespace shardfit
