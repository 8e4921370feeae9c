// From the spool's lines to the ledger: what is charged, what is compared, and that booking twice changes nothing.
#include "pricing/ledger.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

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

constexpr const char* kSite =
    R"({"cluster": "c1", "currency": "EUR", "gpu_names": {"h100": "h100_sxm_80gb"}, "partitions": {
  "h100": {"region": "verda/FIN-02", "gpus_per_node": 8, "price": {"amount": 20.778, "currency": "USD", "per": "node_hour"}, "billing_increment_seconds": 60},
  "book": {"region": "oci/eu-zurich-1", "price": {"provider": "oci", "instance": "BM.GPU.H100.8"}},
  "own": {"region": "lyceum/berlin", "gpus_per_node": 8, "energy": {"node_watts": 8000, "pue": 1.25, "tariff": {"amount": 0.2, "currency": "EUR", "per": "kWh"}, "depreciation": {"amount": 6, "currency": "EUR", "per": "node_hour"}}},
  "cpu": {"region": "lyceum/berlin", "gpu": "cpu", "price": {"amount": 0.4, "currency": "EUR", "per": "node_hour"}},
  "brl": {"region": "lyceum/berlin", "gpus_per_node": 8, "price": {"amount": 1, "currency": "BRL", "per": "gpu_hour"}},
  "stores": {"region": "verda/FIN-02", "gpus_per_node": 8, "price": {"amount": 16, "currency": "EUR", "per": "node_hour"}, "storage": {"amount": 0.08, "currency": "EUR", "per": "GB_month"}, "egress": {"amount": 0.05, "currency": "EUR", "per": "GB"}},
  "free": {"region": "lyceum/berlin"}}})";

// 2026-11-29 12:00:00 UTC.
constexpr std::int64_t kStart = 1795953600;

Json line(const char* changes = "{}") {
  Json j = parse_json(
      R"({"v":1,"cluster":"c1","job_id":42,"array_job_id":0,"array_task_id":4294967294,"het_job_id":0,"restart_cnt":0,"job_state":3,"partition":"h100","nodes":"h100-1","total_nodes":1,"total_cpus":88,
    "gres_used":"gpu:h100:4","tres_per_node":"gres:gpu:h100:4","tres_fmt_alloc_str":"cpu=88,mem=500G,node=1,billing=88","admin_comment":null,"spank_job_env":[],"exit_code":0,"user_id":1000,"user_name":"ada","account":"lab",
    "name":"train","work_dir":"/home/ada","time_limit":600})");
  j["submit_time"] = kStart - 100;
  j["start_time"] = kStart;
  j["end_time"] = kStart + 3590;
  j.update(parse_json(changes));
  return j;
}

class LedgerTest : public testing::Test {
 protected:
  fs::path dir_ = fs::temp_directory_path() / ("shardfit_ledger_" + std::to_string(::getpid()) + "_" +
                                               testing::UnitTest::GetInstance()->current_test_info()->name());
  Site site_ = parse_site(parse_json(kSite), "site");
  Book book_ = Book::shipped(&types());
  Rates rates_ = Rates::shipped();
  Accounts accounts_{site_, book_, types(), rates_};

  LedgerTest() { fs::create_directories(dir_); }
  ~LedgerTest() override { fs::remove_all(dir_); }
  LedgerRecord record(const Json& j) { return account(parse_spool_line(j.dump(), "line 1"), accounts_); }
  LedgerRecord record(const char* changes = "{}") { return record(line(changes)); }
  static std::string why(const LedgerRecord& r, const std::string& field) {
    for (const auto& [f, w] : r.unknown)
      if (f == field) return w;
    return "";
  }

  // The folder that a submission writes, and what the run left.
  Json planned() {
    const std::string sha(64, 'a');
    const fs::path folder = dir_ / ".shardfit" / sha;
    fs::create_directories(folder);
    fs::create_directories(dir_ / "out");
    std::ofstream(folder / "decision.json")
        << R"({"decision": "chosen", "chosen": {"offer": "c1/h100", "features": [], "plan": {"gpus_per_node": 4, "nodes": 1}, "offer_gpus_per_node": 8, "seconds": 3000,
      "estimate": {"memory": {"allocated_peak": 50000000000}, "time": {"step": 1.5}}, "cost": {"amount": 10.389, "currency": "USD"}}, "runner_up": {"offer": "c1/a100", "cost": 12.0}})";
    std::ofstream(folder / "job.json") << Json{{"output", (dir_ / "out").string()}}.dump();
    std::ofstream(dir_ / "out" / "metrics.jsonl") << R"({"event":"start","ranks":4}
{"step":1,"step_seconds":99,"memory":{"allocated_peak":70000000000}}
{"event":"start","ranks":4}
{"step":2,"step_seconds":9,"memory":{"allocated_peak":40000000000}}
{"step":3,"step_seconds":1.5,"memory":{"allocated_peak":51000000000}}
{"step":4,"step_seconds":1.7,"memory":{"allocated_peak":51000000000}}
{"step":5,"step_seconds":1.6,"memory":{"allocated_peak":50000000000}}
{"event":"end","reason":"completed","exit":0}
)";
    const auto at = fs::file_time_type(
        fs::file_time_type::clock::from_sys(std::chrono::sys_seconds(std::chrono::seconds(kStart + 3580))));
    fs::last_write_time(dir_ / "out" / "metrics.jsonl", at);
    Json j = line();
    j["admin_comment"] = "jobstats:abc|shardfit1;pins=residency(EU|CH)&sovereign;plan=" + sha + "|more";
    j["spank_job_env"] = {"OTHER=1", "SHARDFIT_PLAN=" + (folder / "plan.json").string()};
    return j;
  }
};

TEST_F(LedgerTest, ChargesTheShareOfTheNodeThatWasAllocated) {
  const auto r = record();
  EXPECT_EQ(r.gpu, "h100_sxm_80gb");
  EXPECT_EQ(r.gpus, 4);
  EXPECT_EQ(r.seconds, 3590);
  EXPECT_EQ(r.billed_seconds, 3600) << "whole minutes";
  ASSERT_TRUE(r.cost.has_value()) << why(r, "cost");
  EXPECT_EQ(r.cost->to_string(), "10.00 EUR") << "half of 20.778 USD at 1.0389";
  EXPECT_EQ(r.rate_date, "2024-12-31");
  EXPECT_EQ(r.region, "verda/FIN-02");
  // --exclusive gets the whole node, and pays for it.
  EXPECT_EQ(record(R"({"tres_fmt_alloc_str": "cpu=176,gres/gpu=8,gres/gpu:h100=8"})").cost->to_string(), "20.00 EUR");
}

// A submission whose job.json states what it stores and moves; 4 of 8 GPUs for 3590 s cost 7.977778 EUR.
TEST_F(LedgerTest, StorageAndEgressThatTheJobStatesAreBooked) {
  Json j = planned();
  const fs::path job = dir_ / ".shardfit" / std::string(64, 'a') / "job.json";
  const auto stating = [&](const char* changes) {
    Json stated{{"output", (dir_ / "out").string()}};
    stated.update(parse_json(changes));
    std::ofstream(job) << stated.dump();
    return record(j);
  };
  const auto part = [](const LedgerRecord& r, const std::string& name) {
    for (const auto& [part, amount] : r.cost_parts)
      if (part == name) return amount.amount();
    return -1.0;
  };
  const auto basis = [](const LedgerRecord& r, const std::string& name) {
    for (const auto& [part, how] : r.basis)
      if (part == name) return how;
    return std::string();
  };
  j["partition"] = "stores";
  auto r = stating(R"({"storage_gb": 10000, "egress_gb": 40})");
  EXPECT_NEAR(part(r, "storage"), 10000 * 0.08 * 3590 / (365.25 / 12 * 86400), 1e-6);
  EXPECT_NEAR(part(r, "egress"), 2, 1e-9);
  EXPECT_NEAR(part(r, "compute"), 7.977778, 1e-6);
  EXPECT_NEAR(r.cost->amount(), part(r, "compute") + part(r, "storage") + part(r, "egress"), 1e-6);
  EXPECT_EQ(basis(r, "storage"), "10000 GB as the job states x 0.9972 h at 0.08 EUR per GB and month");
  EXPECT_EQ(basis(r, "egress"), "40 GB as the job states at 0.05 EUR per GB, with the attempt that completed");
  EXPECT_EQ(parse_ledger_record(to_json(r)).basis.size(), r.basis.size());
  // Of an attempt that was cut short the data stay: the one that completes moves them.
  j["job_state"] = 6;
  EXPECT_EQ(part(stating(R"({"egress_gb": 40})"), "egress"), -1);
  j["job_state"] = 3;
  // Priced but not stated, stated but not priced: named, and the rest of the cost stands.
  r = stating("{}");
  EXPECT_EQ(why(r, "cost.storage"), "the job states no storage_gb");
  EXPECT_EQ(why(r, "cost.egress"), "the job states no egress_gb");
  EXPECT_NEAR(r.cost->amount(), 7.977778, 1e-6);
  j["partition"] = "h100";
  r = stating(R"({"storage_gb": 10, "egress_gb": 10})");
  EXPECT_EQ(why(r, "cost.storage"), "the site file states no price of storage for partition h100");
  EXPECT_NE(why(r, "cost.egress"), "");
  EXPECT_EQ(r.cost_parts.size(), 1u);
  r = stating("{}");
  EXPECT_EQ(why(r, "cost.storage") + why(r, "cost.egress"), "") << "neither priced nor stated: nothing to say";
  // job.json belongs to the user.
  for (const char* odd : {R"({"storage_gb": -5, "egress_gb": "x"})", R"({"storage_gb": [], "egress_gb": -1e300})"}) {
    j["partition"] = "stores";
    EXPECT_EQ(stating(odd).cost_parts.size(), 1u) << odd;
  }
  EXPECT_NO_THROW(stating(R"({"storage_gb": 1e308, "egress_gb": 1e308})"));
}

TEST_F(LedgerTest, AJobThatEndsInTheSecondOfItsStartRan) {
  for (const int state : {3, 5, 6, 7, 11}) {
    Json j = line(R"({"end_time": 1795953600})");
    j["job_state"] = state;
    const auto r = record(j);
    EXPECT_EQ(r.seconds, 1) << r.state;
    EXPECT_EQ(r.billed_seconds, 60) << "whole minutes";
    EXPECT_EQ(r.gpus, 4);
    EXPECT_GT(r.cost->nanos(), 0);
    ASSERT_FALSE(r.basis.empty());
    EXPECT_EQ(r.basis.front().first, "seconds");
  }
}

TEST_F(LedgerTest, AJobThatNeverRanCostsNothing) {
  for (const char* changes :
       {R"({"nodes": null, "job_state": 4})", R"x({"nodes": "(null)", "total_nodes": 0, "job_state": 5})x",
        R"({"end_time": 1795953600, "job_state": 4})"}) {
    const auto r = record(changes);
    ASSERT_TRUE(r.cost.has_value());
    EXPECT_EQ(r.cost->nanos(), 0) << changes;
    EXPECT_EQ(r.gpus, 0) << "gres_used may be left over from an earlier attempt";
    EXPECT_EQ(r.seconds, 0);
  }
}

TEST_F(LedgerTest, PriceOfTheBook) {
  const auto r = record(R"({"partition": "book", "tres_fmt_alloc_str": "gres/gpu:h100=8"})");
  ASSERT_TRUE(r.price.has_value()) << why(r, "price");
  EXPECT_EQ(r.price->amount, 10) << "80 USD for a machine of eight";
  EXPECT_EQ(r.price->per, "gpu_hour");
  EXPECT_NEAR(r.cost->amount(), 80 * 3590 / 3600.0 / 1.0389, 1e-6);
  // A row of one GPU prices a node of any number.
  site_.partitions.at("book").region = "verda/FIN-02";
  site_.partitions.at("book").price->provider = "verda";
  site_.partitions.at("book").price->instance = "1H100";
  EXPECT_NEAR(record(R"({"partition": "book", "tres_fmt_alloc_str": "gres/gpu:h100=4"})").cost->amount(),
              4 * 2.29 * 3590 / 3600.0 / 1.0389, 1e-6);
}

TEST_F(LedgerTest, OwnedNodesPayEnergyAndDepreciation) {
  const auto r = record(R"({"partition": "own", "tres_fmt_alloc_str": "gres/gpu:h100=8", "end_time": 1795957200})");
  ASSERT_TRUE(r.cost.has_value()) << why(r, "cost");
  EXPECT_NEAR(r.cost->amount(), 8 * 1.25 * 0.2 + 6, 1e-9);
  EXPECT_EQ(r.cost_parts.size(), 2u);
}

TEST_F(LedgerTest, UnknownAmountsSayWhy) {
  EXPECT_NE(why(record(R"({"partition": "free"})"), "cost").find("no price for partition free"), std::string::npos);
  EXPECT_NE(why(record(R"({"partition": "other"})"), "cost").find("does not describe partition other"),
            std::string::npos);
  EXPECT_NE(why(record(R"({"partition": "brl"})"), "cost").find("no exchange rate from BRL"), std::string::npos);
  EXPECT_NE(why(record(R"({"gres_used": "gpu:xyz:2", "tres_per_node": null, "partition": "book"})"), "gpu").find("xyz"),
            std::string::npos);
  EXPECT_FALSE(record(R"({"partition": "brl"})").cost.has_value());
  EXPECT_NE(why(record(), "predicted.cost").find("not submitted with a plan"), std::string::npos);
  const auto no_gpus = record(R"({"gres_used": null, "tres_per_node": null})");
  EXPECT_FALSE(no_gpus.cost.has_value());
}

TEST_F(LedgerTest, CpuPartitionByNodesWhereNoPlanTellsTheShare) {
  const auto r = record(
      R"({"partition": "cpu", "gres_used": null, "tres_per_node": null, "total_nodes": 2, "nodes": "ber[1-2]", "end_time": 1795957200})");
  EXPECT_EQ(r.gpu, "cpu");
  EXPECT_EQ(r.cost->to_string(), "0.80 EUR");
}

TEST_F(LedgerTest, PredictedBesideMeasured) {
  const auto r = record(planned());
  EXPECT_EQ(r.pins, (std::vector<std::string>{"residency(EU|CH)", "sovereign"}));
  EXPECT_EQ(r.plan, std::string(64, 'a'));
  EXPECT_EQ(r.predicted.seconds, 3000);
  EXPECT_NEAR(*r.predicted.cost, 10, 1e-9);
  EXPECT_EQ(r.predicted.step, 1.5);
  EXPECT_EQ(r.measured.memory_peak, 51e9) << "of the last start on";
  EXPECT_EQ(r.measured.step, 1.6) << "median without the first step";
  EXPECT_EQ(r.runner_up.offer, "c1/a100");
  EXPECT_NEAR(*r.runner_up.cost, 12 / 1.0389, 1e-9);
  EXPECT_TRUE(r.unknown.empty()) << r.unknown[0].first << r.unknown[0].second;
}

TEST_F(LedgerTest, MetricsOfALaterRunAreNotTaken) {
  const Json j = planned();
  fs::last_write_time(
      dir_ / "out" / "metrics.jsonl",
      fs::file_time_type::clock::from_sys(std::chrono::sys_seconds(std::chrono::seconds(kStart + 9000))));
  const auto r = record(j);
  EXPECT_FALSE(r.measured.step.has_value());
  EXPECT_NE(why(r, "measured.step").find("written on after"), std::string::npos);
}

TEST_F(LedgerTest, FilesOfUsersCannotHurt) {
  Json j = planned();
  const fs::path folder = dir_ / ".shardfit" / std::string(64, 'a');
  for (const char* text : {"", "[]", "{\"chosen\": 3}", "{\"chosen\": {\"cost\": {\"amount\": \"many\"}}}", "not json",
                           "{\"chosen\": {\"plan\": {\"gpus_per_node\": 1e300, \"nodes\": 1e300}}}"}) {
    std::ofstream(folder / "decision.json") << text;
    EXPECT_TRUE(record(j).cost.has_value()) << text;
  }
  fs::remove(folder / "decision.json");
  ASSERT_EQ(::mkfifo((folder / "decision.json").c_str(), 0600), 0);
  EXPECT_NE(why(record(j), "predicted.cost").find("cannot be read"), std::string::npos);
}

TEST_F(LedgerTest, BookingAgainChangesNothing) {
  LedgerImport read;
  std::string spool = line().dump() + "\n" +
                      line(R"({"restart_cnt": 1, "start_time": 1795960000, "end_time": 1795961000})").dump() + "\n" +
                      line(R"({"job_id": 43, "cluster": "c2"})").dump() + "\n";
  const auto attempts = read_spool(spool, read);
  ASSERT_EQ(attempts.size(), 3u);
  {
    Ledger ledger(dir_.string(), true);
    const auto first = ledger.book(attempts, accounts_, false);
    EXPECT_EQ(first.booked, 3);
    const auto second = ledger.book(attempts, accounts_, false);
    EXPECT_EQ(second.booked, 0);
    EXPECT_EQ(second.known, 3);
    site_.partitions.at("h100").price->stated->amount = 99;
    ledger.book(attempts, accounts_, false);
  }
  Ledger ledger(dir_.string(), false);
  auto all = ledger.find({});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].cost->to_string(), "10.00 EUR") << "a new price does not change what was booked";
  EXPECT_EQ(ledger.find({.job_id = 42}).size(), 2u);
  EXPECT_EQ(ledger.find({.cluster = "c2"}).size(), 1u);
  EXPECT_EQ(ledger.find({.user = "bob"}).size(), 0u);
  EXPECT_EQ(ledger.find({.region = "VERDA/fin-02"}).size(), 3u);
  EXPECT_EQ(ledger.find({.since = kStart + 5000}).size(), 1u);
  EXPECT_EQ(ledger.find({.until = kStart + 5000}).size(), 2u);
  Ledger again(dir_.string(), true);
  again.book(attempts, accounts_, true);
  EXPECT_NE(again.find({})[0].cost->to_string(), "10.00 EUR") << "unless it is asked for";
}

TEST_F(LedgerTest, RecordsGoThereAndBack) {
  const auto r = record(planned());
  const auto json = to_json(r);
  EXPECT_EQ(to_json(parse_ledger_record(Json::parse(json.dump()))).dump(), json.dump());
  for (const char* key :
       {"cluster", "job_id",    "restart",   "submit",   "start",     "end",  "state",   "user",
        "account", "partition", "region",    "nodes",    "gpu",       "gpus", "seconds", "billed_seconds",
        "price",   "cost",      "predicted", "measured", "runner_up", "pins", "plan"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["start"], "2026-11-29T12:00:00Z");
}

TEST_F(LedgerTest, AnEmptyLedgerIsEmpty) { EXPECT_TRUE(Ledger((dir_ / "none").string(), false).find({}).empty()); }

TEST(Spool, TornAndBrokenLines) {
  LedgerImport read;
  const std::string good = line().dump();
  EXPECT_EQ(read_spool(good + "\n" + good.substr(0, 40), read).size(), 1u) << "the last line is still being written";
  EXPECT_TRUE(read.unreadable.empty());
  const auto rest = read_spool("{\"v\":2,\"job_id\":1}\nnot json\n[]\n{\"v\":1}\n\n{\"v\":1,\"job_id\":1e999}\n" +
                                   std::string(100000, '[') + "\n" + good + "\n",
                               read);
  EXPECT_EQ(rest.size(), 1u);
  EXPECT_EQ(read.unreadable.size(), 6u);
}

TEST(Spool, StatesAndIds) {
  EXPECT_EQ(parse_spool_line(line(R"({"job_state": 32771})").dump(), "").state, "COMPLETED") << "3 while completing";
  EXPECT_EQ(parse_spool_line(line(R"({"job_state": 1024})").dump(), "").state, "REQUEUED");
  EXPECT_EQ(parse_spool_line(line(R"({"job_state": 7})").dump(), "").state, "NODE_FAIL");
  const auto array = parse_spool_line(line(R"({"array_job_id": 40, "array_task_id": 2})").dump(), "");
  EXPECT_EQ(array.array_job_id, 40);
  EXPECT_EQ(array.array_task_id, 2);
  EXPECT_FALSE(parse_spool_line(line().dump(), "").array_job_id.has_value());
}

TEST(Spool, GpuCounts) {
  const auto one = [](const char* text) {
    const auto g = parse_gpu_tres(text);
    return g.size() == 1 ? g[0].type + "=" + std::to_string(g[0].count) : std::to_string(g.size());
  };
  EXPECT_EQ(one("cpu=8,mem=1G,gres/gpu=8,gres/gpu:h100=8"), "h100=8");
  EXPECT_EQ(one("gpu:h100:4"), "h100=4");
  EXPECT_EQ(one("gres:gpu:h100:4(IDX:0-3)"), "h100=4");
  EXPECT_EQ(one("gpu:4(IDX:0,2-4)"), "=4");
  EXPECT_EQ(one("gpu:a100:2,gpu:a100:2"), "a100=4");
  EXPECT_EQ(one("gpu:a100:2,gpu:h100:1"), "2");
  EXPECT_EQ(one("cpu=8,billing=8"), "0");
}

TEST(Sacct, RowsAndComments) {
  const auto rows = parse_sacct(
      "Cluster|JobIDRaw|JobID|State|Submit|Start|End|Partition|NodeList|NNodes|NCPUS|AllocTRES|AdminComment|User|Account|JobName|WorkDir\n"
      "c1|7|7|REQUEUED|2026-11-29T11:00:00|2026-11-29T12:00:00|2026-11-29T12:30:00|h100|h1|1|8|cpu=8,gres/gpu=4,gres/gpu:h100=4|a|b|ada|lab|t|/w\n"
      "c1|7|7|COMPLETED|2026-11-29T11:00:00|2026-11-29T13:00:00|2026-11-29T14:00:00|h100|h1|1|8|cpu=8,gres/gpu=4,gres/gpu:h100=4||ada|lab|t|/w\n"
      "c1|8.batch|8.batch|COMPLETED|||||||||||||\n"
      "c1|9|6_3|CANCELLED by 0|2026-11-29T11:00:00|Unknown|2026-11-29T12:00:00|h100|None assigned|1|8|||bob|lab|t|/w\n"
      "c1|10|10|RUNNING|2026-11-29T11:00:00|2026-11-29T12:00:00|Unknown|h100|h1|1|8|||bob|lab|t|/w\n",
      "c9");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].state, "REQUEUED");
  EXPECT_EQ(rows[1].restart, 1);
  EXPECT_EQ(rows[1].gpus[0].count, 4);
  EXPECT_EQ(rows[2].state, "CANCELLED");
  EXPECT_EQ(rows[2].array_job_id, 6);
  EXPECT_FALSE(rows[2].ran());
  EXPECT_THROW(parse_sacct("a|b\n1|2\n", ""), Error);
}

}  // namespace
}  // namespace shardfit::pricing
