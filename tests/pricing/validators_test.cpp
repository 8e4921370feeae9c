// The validators on defects of real feeds (data/bad_prices.jsonl: rows quoted from SkyPilot catalogues, some
// constructed, each with the verdict and the rule it must get), on near misses that must pass, and on the shipped
// snapshot.
#include "pricing/validators.hpp"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "pricing/book.hpp"
#include "pricing/instance_names.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

const GpuTypes& types() {
  static const GpuTypes t =
      GpuTypes::parse(read_json_file(SHARDFIT_SOURCE_DIR "/selector/hardware/data/hardware.json"));
  return t;
}

std::vector<FeedRow> judged(const std::string& text, const std::string& feed = "",
                            const char* now = "2026-08-22T00:00:00Z") {
  auto rows = read_feed_file(text, "test", feed);
  JudgeOptions o;
  o.types = &types();
  o.now = *parse_time(now);
  judge(rows, o);
  return rows;
}

bool has(const PriceRow& r, const std::string& rule) {
  return std::find(r.rules.begin(), r.rules.end(), rule) != r.rules.end();
}

TEST(Validators, DefectsOfRealFeeds) {
  const std::string file = SHARDFIT_SOURCE_DIR "/tests/pricing/data/bad_prices.jsonl";
  const std::string text = read_file(file);
  const auto rows = judged(text);
  std::vector<Json> cases;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    cases.push_back(Json::parse(text.substr(at, text.find('\n', at) - at)));
  ASSERT_EQ(rows.size(), cases.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& r = rows[i].row;
    EXPECT_EQ(rows[i].id, cases[i]["id"]);
    EXPECT_EQ(to_string(r.verdict), cases[i]["expected"]) << cases[i]["id"] << ": " << r.why;
    const bool right = cases[i]["rule"].is_string() ? has(r, cases[i]["rule"]) : r.rules.empty();
    EXPECT_TRUE(right) << cases[i]["id"] << ": " << r.why;
  }
}

// A SkyPilot row from a few words; everything else is in order.
Json row(const char* changes) {
  Json j = {{"InstanceType", "x1"}, {"AcceleratorName", "H100"}, {"AcceleratorCount", 8.0},
            {"vCPUs", 192},         {"MemoryGiB", 2048},         {"GpuInfo", nullptr},
            {"Price", 40.0},        {"SpotPrice", nullptr},      {"Region", "eu-north-1"}};
  j.update(parse_json(changes));
  return j;
}

PriceRow judge_one(const std::string& feed, const char* changes, std::vector<const char*> peers = {}) {
  Json line = {{"id", "t"},
               {"feed", feed},
               {"feed_row", row(changes)},
               {"peers", Json::array()},
               {"now", "2026-08-22T00:00:00Z"}};
  for (const auto* p : peers) line["peers"].push_back(row(p));
  return judged(line.dump()).front().row;
}

struct Case {
  const char *feed, *changes, *verdict, *rule;
  std::vector<const char*> peers = {};
};

TEST(Validators, EachRuleAndItsNearMiss) {
  // clang-format off
  const Case cases[] = {
      {"skypilot-aws", "{}", "accepted", ""},
      // gpu_fraction
      {"skypilot-azure", R"({"InstanceType": "Standard_NV12ads_A10_v5", "AcceleratorName": "A10", "AcceleratorCount": 1, "vCPUs": 12, "Price": 0.908, "Region": "westeurope"})", "rejected", "gpu_fraction"},
      {"skypilot-azure", R"({"InstanceType": "Standard_NV36ads_A10_v5", "AcceleratorName": "A10", "AcceleratorCount": 1, "vCPUs": 36, "Price": 3.2, "Region": "westeurope"})", "accepted", ""},
      {"skypilot-aws", R"({"InstanceType": "g6f.large", "AcceleratorName": "L4", "AcceleratorCount": 0.125, "Price": 0.2})", "rejected", "gpu_fraction"},
      {"skypilot-other", R"({"InstanceType": "vg-2c", "AcceleratorName": "A40", "AcceleratorCount": 1, "vCPUs": 4, "MemoryGiB": 16, "Price": 0.15, "Region": "germany"})", "rejected", "gpu_fraction",
       {R"({"InstanceType": "vg-24c", "AcceleratorName": "A40", "AcceleratorCount": 1, "vCPUs": 24, "MemoryGiB": 120, "Price": 0.85, "Region": "germany"})"}},
      // AWS g5: one whole GPU with 4 or with 64 CPUs; the price falls far more slowly than the CPUs.
      {"skypilot-aws", R"({"InstanceType": "g5.xlarge", "AcceleratorName": "A10G", "AcceleratorCount": 1, "vCPUs": 4, "MemoryGiB": 16, "Price": 1.006})", "accepted", "",
       {R"({"InstanceType": "g5.16xlarge", "AcceleratorName": "A10G", "AcceleratorCount": 1, "vCPUs": 64, "MemoryGiB": 256, "Price": 4.096})"}},
      // count_memory
      {"skypilot-azure", R"({"InstanceType": "Standard_ND96isr_H100_v5", "AcceleratorCount": 12, "Price": 98.32, "Region": "eastus"})", "rejected", "count_memory"},
      {"skypilot-azure", R"({"InstanceType": "Standard_ND96isr_H100_v5", "AcceleratorCount": 8, "Price": 98.32, "Region": "eastus"})", "accepted", ""},
      {"skypilot-vast", R"({"InstanceType": "4x-H100_SXM-64-131072", "AcceleratorCount": 8, "Region": "Sweden, SE"})", "rejected", "count_memory"},
      {"skypilot-aws", R"({"GpuInfo": "{'Gpus': [{'Name': 'H100', 'Count': 8, 'MemoryInfo': {'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 655360}"})", "accepted", ""},
      {"skypilot-vast", R"({"InstanceType": "1x-RTX_4090-48-98304", "AcceleratorName": "RTX4090", "AcceleratorCount": 1, "Price": 0.4, "Region": "Germany, DE", "GpuInfo": "{'Gpus': [{'Name': 'RTX4090', 'MemoryInfo': {'SizeInMiB': 49140}}], 'TotalGpuMemoryInMiB': 49140}"})", "rejected", "count_memory"},
      {"skypilot-aws", R"({"AcceleratorName": "H200", "Price": 63.3, "GpuInfo": "{'Gpus': [{'Name': 'H200', 'Count': 8, 'MemoryInfo': {'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 655360}"})", "rejected", "count_memory"},
      {"skypilot-vast", R"({"InstanceType": "12x-RTX_3090-64-131072", "AcceleratorName": "RTX3090", "AcceleratorCount": 12, "Price": 2.0, "Region": "Quebec, CA"})", "accepted", ""},
      // gpu_unknown
      {"skypilot-aws", R"({"AcceleratorName": "Inferentia"})", "rejected", "gpu_unknown"},
      {"skypilot-aws", R"({"InstanceType": "m5.large", "AcceleratorName": null, "AcceleratorCount": null})", "rejected", "gpu_unknown"},
      // spot_below_on_demand
      {"skypilot-azure", R"({"Price": 40, "SpotPrice": 40, "Region": "eastus"})", "flagged", "spot_below_on_demand"},
      {"skypilot-gcp", R"({"Price": 36.6, "SpotPrice": 39.1, "Region": "europe-west1"})", "rejected", "spot_below_on_demand"},
      {"skypilot-gcp", R"({"Price": 36.6, "SpotPrice": 36.5, "Region": "europe-west1"})", "accepted", ""},
      // region_spread
      {"skypilot-aws", R"({"Price": 63.3})", "accepted", "", {R"({"Region": "ap-northeast-2", "Price": 87.3})"}},
      {"skypilot-aws", R"({"Price": 30})", "flagged", "region_spread", {R"({"Region": "ap-northeast-2", "Price": 87.3})"}},
      {"skypilot-aws", R"({"Price": 30})", "accepted", "", {R"({"InstanceType": "x2", "Region": "ap-northeast-2", "Price": 87.3})"}},
      {"skypilot-aws", R"({"InstanceType": "p9.2xlarge", "AcceleratorCount": 1, "Price": 0.4})", "flagged", "region_spread"},
      // host_part_missing
      {"skypilot-gcp", R"({"InstanceType": null, "vCPUs": null, "MemoryGiB": null, "Region": "europe-west4"})", "flagged", "host_part_missing"},
      {"skypilot-vast", R"({"InstanceType": "8x-H100_SXM-32-65536", "vCPUs": 32, "MemoryGiB": 64, "Region": "Sweden, SE"})", "flagged", "host_part_missing"},
      // placeholder_price
      {"skypilot-aws", R"({"Price": 9999})", "rejected", "placeholder_price"},
      {"skypilot-aws", R"({"AcceleratorName": "L4", "AcceleratorCount": 1, "Price": 45})", "rejected", "placeholder_price"},
      {"skypilot-aws", R"({"Price": "n/a"})", "rejected", "placeholder_price"},
      {"skypilot-aws", R"({"Price": -3})", "rejected", "placeholder_price"},
      {"skypilot-aws", R"({"Price": null})", "rejected", "placeholder_price"},
      // capacity_unknown
      {"skypilot-oci", R"({"InstanceType": "BM.GPU.B200.8", "AcceleratorName": "B200", "Price": 112, "Region": "af-casablanca-1"})", "flagged", "capacity_unknown"},
      {"skypilot-lambda", R"({"InstanceType": "gpu_8x_h100_sxm5", "Price": 23.92, "Region": "us-east-1"})", "flagged", "capacity_unknown", {R"({"InstanceType": "gpu_8x_h100_sxm5", "Price": 23.92, "Region": "us-west-1"})"}},
      // country_unresolvable
      {"skypilot-seeweb", R"({"Region": "", "Currency": "EUR"})", "rejected", "country_unresolvable"},
      {"skypilot-runpod", R"({"Region": "any"})", "rejected", "country_unresolvable"},
      // currency_missing
      {"skypilot-seeweb", R"({"Region": "it-fr2"})", "rejected", "currency_missing"},
      {"skypilot-seeweb", R"({"Region": "it-fr2", "Currency": "EUR"})", "accepted", ""},
      {"skypilot-hetzner", R"({"Region": "fsn1"})", "rejected", "currency_missing"},
      {"skypilot-verda", R"({"Region": "FIN-01", "Currency": "EURO"})", "rejected", "currency_missing"},
      // zero_is_unknown
      {"skypilot-nebius", R"({"Region": "eu-north1", "SpotPrice": 0.0})", "flagged", "zero_is_unknown"},
      {"skypilot-nebius", R"({"Region": "eu-north1", "MemoryGiB": 0})", "flagged", "zero_is_unknown"},
      {"skypilot-nebius", R"({"Region": "eu-north1", "GpuInfo": "{'Gpus': [{'MemoryInfo': {'SizeInMiB': 0}}], 'TotalGpuMemoryInMiB': 0}"})", "flagged", "zero_is_unknown"},
      // duplicate
      {"skypilot-aws", "{}", "flagged", "duplicate", {"{}"}},
      // stale
      {"skypilot-aws", R"({"AsOf": "2026-08-15"})", "accepted", ""},
      {"skypilot-aws", R"({"AsOf": "2026-08-14"})", "flagged", "stale"},
      {"skypilot-aws", R"({"AsOf": "2026-08-21", "SpotPrice": 20})", "accepted", ""},
      {"skypilot-aws", R"({"AsOf": "2026-08-20T23:00:00Z", "SpotPrice": 20})", "flagged", "stale"},
      {"skypilot-aws", R"({"AsOf": "2026"})", "flagged", "stale"},
      {"skypilot-aws", R"x({"AsOf": "2024 (inferred)"})x", "flagged", "stale"},
  };
  // clang-format on
  for (const auto& c : cases) {
    const PriceRow r = judge_one(c.feed, c.changes, c.peers);
    EXPECT_STREQ(to_string(r.verdict), c.verdict) << c.feed << " " << c.changes << ": " << r.why;
    const bool right = *c.rule ? has(r, c.rule) : r.rules.empty();
    EXPECT_TRUE(right) << c.feed << " " << c.changes << ": " << r.why;
  }
}

TEST(Validators, FlagsMakeTheFieldThatLiesUnknown) {
  EXPECT_FALSE(judge_one("skypilot-azure", R"({"Price": 40, "SpotPrice": 40, "Region": "eastus"})").spot_per_hour);
  EXPECT_FALSE(judge_one("skypilot-aws", R"({"AsOf": "2026-08-19", "SpotPrice": 20})").spot_per_hour);
  EXPECT_EQ(judge_one("skypilot-aws", R"({"AsOf": "2026-08-19", "SpotPrice": 20})").on_demand_per_hour, 40.0);
  const PriceRow vast = judge_one(
      "skypilot-vast",
      R"({"InstanceType": "8x-H100_SXM-32-65536", "vCPUs": 32, "MemoryGiB": 64, "Region": "Sweden, SE", "SpotPrice": 0.0})");
  EXPECT_FALSE(vast.vcpus || vast.ram_gib || vast.spot_per_hour);
}

TEST(Validators, ARepeatedRowOfAFileIsFlaggedOnce) {
  const std::string line = "aws,p5.48xlarge,H100 SXM,8,80,192,2048,,us-east-1,US,USD,55,,,2026-08-20,feed,A,\n";
  const auto rows = judged(
      "provider,instance_sku,gpu_type,gpu_count,gpu_mem,vcpus,ram_gib,local_nvme_gb,region,country,currency,on_demand_per_hour,spot_per_hour,egress_per_gb,date,source,quality,note\n" +
      line + line);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].row.verdict, Verdict::kAccepted) << rows[0].row.why;
  EXPECT_TRUE(has(rows[1].row, "duplicate"));
}

TEST(Validators, ReadsGpuhunt) {
  const auto rows = judged(
      "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,provider\nexample,FIN-01,2.3,22,120,1,H100,80,False,verda\nexample,FIN-01,0.8,22,120,1,H100,80,True,verda\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].row.on_demand_per_hour, 2.3);
  EXPECT_EQ(rows[1].row.spot_per_hour, 0.8);
  EXPECT_EQ(rows[0].row.country, "FI");
  EXPECT_EQ(rows[0].row.verdict, Verdict::kAccepted) << rows[0].row.why;
}

TEST(Validators, UnreadableFilesAreOneError) {
  for (const char* text :
       {"", "a,b\n1,2\n", "provider,instance_sku\nx\n", "provider,instance_sku\n\"x,1\n", "[1]", "{\"feed_row\": 3}\n",
        "{}\nnot json\n", "InstanceType,AcceleratorName\nx,y\n", "{\"rows\": 1}"})
    EXPECT_THROW(judged(text), Error) << text;
}

TEST(InstanceNames, CountsAndSlices) {
  // clang-format off
  const struct { const char *provider, *name; double count; } cases[] = {
      {"lambda", "gpu_8x_b200_sxm6", 8}, {"vast", "2x-RTX_4090-32-65536", 2}, {"verda", "8H100.80S.176V", 8}, {"verda", "1A100-80", 1}, {"scaleway", "H100-2-80G", 2},
      {"nebius", "gpu-h100-sxm 8gpu-128vcpu-1600gb", 8}, {"oci", "BM.GPU.GB200.4", 4}, {"oci", "VM.GPU3.1", 1}, {"gcp", "a3-highgpu-8g", 8}, {"gcp", "a2-megagpu-16g", 16},
      {"azure", "Standard_NC24ads_A100_v4", 1}, {"azure", "Standard_NC80adis_H100_v5", 2}, {"azure", "Standard_ND96isr_H100_v5", 8}, {"aws", "p5.48xlarge", 8}, {"aws", "g5.12xlarge", 4},
      {"hyperstack", "n3-A100x8-NVLink", 8}, {"lambda-via-shadeform", "lambdalabs_A100-sxm4-80GBx8", 8}, {"seeweb", "ECS H200 x4", 4}};
  // clang-format on
  for (const auto& c : cases) EXPECT_EQ(gpus_by_name(c.provider, c.name), c.count) << c.name;
  for (const char* name : {"lambdalabs_A100-sxm4", "h100-380", "H100", "RENDER-S", "m5.48xlarge", "RTX4090", ""})
    EXPECT_EQ(gpus_by_name("other", name), std::nullopt) << name;
  EXPECT_TRUE(is_gpu_slice("a100-mig-1g.10gb") && is_gpu_slice("Standard_NV6ads_A10_v5") &&
              !is_gpu_slice("Standard_NV72ads_A10_v5") && !is_gpu_slice("g6.xlarge"));
}

// The snapshot was gathered with these rules in mind: quality A rows must pass unless their notes say what is wrong.
TEST(Snapshot, VerdictsOfTheShippedRows) {
  const Book book = Book::shipped(&types());
  const auto all = book.history({});
  ASSERT_EQ(all.size(), 314u);
  std::map<std::string, int> verdicts, rules;
  for (const auto& r : all) {
    ++verdicts[to_string(r.verdict)];
    for (const auto& rule : r.rules) ++rules[rule];
    EXPECT_FALSE(r.quality == "A" && r.verdict == Verdict::kRejected)
        << r.provider << " " << r.instance << " " << r.region << ": " << r.why;
  }
  EXPECT_EQ(rules["country_unresolvable"],
            23);  // Seeweb's blanks 5, Exoscale 8, RunPod "any" 7, FluidStack, Latitude, Cudo
  EXPECT_EQ(rules["host_part_missing"], 24 + 22);  // Vast's one host for all, GCP's GPU parts
  EXPECT_EQ(rules["capacity_unknown"], 28 + 14);   // OCI, Lambda
  EXPECT_EQ(rules["spot_below_on_demand"], 3);
  EXPECT_EQ(verdicts["accepted"], 201);
  EXPECT_EQ(verdicts["flagged"], 86);
  EXPECT_EQ(verdicts["rejected"], 27);
}

}  // namespace
}  // namespace shardfit::pricing
