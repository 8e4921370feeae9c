// From a cluster's inventory, the site file and the shipped book to offers, and what is said where none comes out.
#include "pricing/inventory_offers.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

const GpuTypes& types() {
  static const GpuTypes t =
      GpuTypes::parse(read_json_file(SHARDFIT_SOURCE_DIR "/selector/hardware/data/hardware.json"));
  return t;
}

ClusterOffers make(const char* inventory, const char* site, UserContext user = {}) {
  static const regions::Catalogue catalogue = regions::Catalogue::shipped();
  static const Book book = Book::shipped(&types());
  return offers_from(parse_inventory(parse_json(inventory)), parse_site(parse_json(site), "site"), book, catalogue,
                     types(), user, *parse_time("2026-08-22"));
}

std::string notes(const ClusterOffers& c) {
  std::string all;
  for (const auto& n : c.notes)
    all += n.partition + (n.feature.empty() ? "" : "/" + n.feature) + ": " + n.reason + "\n";
  return all;
}

constexpr const char* kInventory = R"({"cluster": "c1", "nodes": [
  {"name": "h1", "gpus": [{"type": "h100", "count": 8}], "cpus": 176, "cores": 88, "memory_mib": 1515520},
  {"name": "h2", "gpus": [{"type": "h100", "count": 8}], "cpus": 176, "cores": 88, "memory_mib": 1400000},
  {"name": "h3", "gpus": [{"type": "h100", "count": 8}], "cpus": 176, "cores": 88, "memory_mib": 900000, "state": "drained"},
  {"name": "c1", "cpus": 4, "cores": 2, "memory_mib": 16384}],
 "partitions": [{"name": "h100", "nodes": ["h1", "h2", "h3"], "max_seconds": 86400}, {"name": "cpu", "nodes": ["c1"], "is_default": true}]})";

TEST(InventoryOffers, GpuPartitionWithAPriceOfTheBook) {
  const auto c = make(
      kInventory,
      R"({"gpu_names": {"h100": "h100_sxm_80gb"}, "partitions": {"h100": {"region": "verda/FIN-02", "price": {"provider": "verda", "instance": "1H100"}, "host": {"pcie_gbs": 55}}}})");
  ASSERT_EQ(c.offers.size(), 1u) << notes(c);
  const Offer& o = c.offers[0];
  EXPECT_EQ(o.id, "c1/h100");
  EXPECT_TRUE(o.from_slurm);
  EXPECT_EQ(o.gpu, "h100_sxm_80gb");
  EXPECT_EQ(o.max_nodes, 2) << "the drained node does not count";
  EXPECT_NEAR(*o.host.ram_gib, 1400000 / 1024.0, 1e-9) << "the least of the usable nodes";
  EXPECT_EQ(o.host.cores_per_gpu, 11);
  EXPECT_EQ(o.host.pcie_gbs, 55);
  EXPECT_EQ(o.max_seconds, 86400);
  EXPECT_EQ(o.provider, "verda");
  ASSERT_TRUE(o.price.has_value()) << notes(c);
  EXPECT_NEAR(o.price->amount, 8 * 2.29, 1e-9) << "a row of one GPU, by the GPU";
  EXPECT_EQ(o.unavailable, "");
  EXPECT_NE(notes(c).find("cpu: its nodes have no GPUs"), std::string::npos) << notes(c);
}

TEST(InventoryOffers, CpuPartition) {
  const auto c = make(
      kInventory,
      R"({"partitions": {"cpu": {"region": "lyceum/berlin", "gpu": "cpu", "price": {"amount": 0.4, "currency": "EUR"}}}, "gpu_names": {"h100": "h100_sxm_80gb"}})");
  const Offer* o = nullptr;
  for (const auto& x : c.offers)
    if (x.partition == "cpu") o = &x;
  ASSERT_NE(o, nullptr) << notes(c);
  EXPECT_EQ(o->gpu, "cpu");
  EXPECT_EQ(o->gpus_per_node, 2) << "one rank a core";
  EXPECT_EQ(o->device_memory_gib, 6);
  EXPECT_EQ(o->price->as_of, "2026-08-22");
  const auto stated = make(
      kInventory,
      R"({"partitions": {"cpu": {"region": "lyceum/berlin", "gpu": "cpu", "gpus_per_node": 1, "device_memory_gib": 5}}})");
  EXPECT_EQ(stated.offers.back().gpus_per_node, 1);
  EXPECT_EQ(stated.offers.back().device_memory_gib, 5);
}

TEST(InventoryOffers, SaysWhyThereIsNone) {
  const auto ambiguous = make(kInventory, "{}");
  EXPECT_TRUE(ambiguous.offers.empty());
  EXPECT_NE(notes(ambiguous).find("ambiguous (h100_sxm_80gb"), std::string::npos) << notes(ambiguous);
  const auto unknown = make(kInventory, R"({"gpu_names": {"h100": "h100_sxm_80g"}})");
  EXPECT_TRUE(unknown.offers.empty() || unknown.offers[0].gpu == "h100_sxm_80gb") << notes(unknown);
  const auto undescribed = make(kInventory, R"({"gpu_names": {"h100": "h100_sxm_80gb"}})");
  ASSERT_EQ(undescribed.offers.size(), 1u);
  EXPECT_TRUE(undescribed.offers[0].region.empty() && !undescribed.offers[0].price);
  const char* site =
      R"({"gpu_names": {"h100": "h100_sxm_80gb"}, "partitions": {"gone": {}, "h100": {"region": "%s", "price": {"provider": "%s", "instance": "%s"}}}})";
  const auto with = [&](const char* region, const char* provider, const char* instance) {
    char buffer[512];
    std::snprintf(buffer, sizeof buffer, site, region, provider, instance);
    return make(kInventory, buffer);
  };
  EXPECT_NE(notes(with("verda/FIN-03", "verda", "9H100")).find("no row verda 9H100"), std::string::npos);
  EXPECT_NE(notes(with("oci/eu-zurich-1", "verda", "1H100")).find("not in oci/eu-zurich-1"), std::string::npos);
  EXPECT_NE(notes(with("seeweb/blank", "seeweb", "ECS H100")).find("rejected (country_unresolvable)"),
            std::string::npos)
      << notes(with("seeweb/blank", "seeweb", "ECS H100"));
  EXPECT_NE(notes(with("verda/FIN-3", "verda", "1H100")).find("not in the catalogue"), std::string::npos);
  EXPECT_NE(notes(with("verda/FIN-03", "verda", "9H100")).find("gone: the site file describes it"), std::string::npos);
}

TEST(InventoryOffers, MixedPartitionByFeature) {
  const char* inventory = R"({"cluster": "c1", "nodes": [
    {"name": "a", "gpus": [{"type": "a100", "count": 4}], "cpus": 64, "memory_mib": 500000, "features": ["fin3"]},
    {"name": "b", "gpus": [{"type": "a100", "count": 8}], "cpus": 64, "memory_mib": 500000, "features": ["zrh"]},
    {"name": "c", "gpus": [{"type": "l40s", "count": 4}], "cpus": 64, "memory_mib": 500000, "features": ["zrh"]},
    {"name": "d", "gpus": [{"type": "l40s", "count": 4}], "cpus": 64, "memory_mib": 500000, "features": ["zrh", "fin3"]},
    {"name": "e", "gpus": [{"type": "l40s", "count": 4}], "cpus": 64, "memory_mib": 500000}],
   "partitions": [{"name": "mixed", "nodes": ["a", "b", "c", "d", "e"]}]})";
  const auto c = make(
      inventory,
      R"({"gpu_names": {"a100": "a100_sxm_80gb"}, "partitions": {"mixed": {"by_feature": {"fin3": {"region": "verda/FIN-03"}, "zrh": {"region": "oci/eu-zurich-1"}}}}})");
  ASSERT_EQ(c.offers.size(), 3u) << notes(c);
  EXPECT_EQ(c.offers[0].id, "c1/mixed/fin3");
  EXPECT_EQ(c.offers[0].features, std::vector<std::string>{"fin3"});
  EXPECT_EQ(c.offers[1].id, "c1/mixed/zrh/a100_sxm_80gb");
  EXPECT_EQ(c.offers[1].region, "oci/eu-zurich-1");
  EXPECT_EQ(c.offers[2].id, "c1/mixed/zrh/l40s_48gb");
  EXPECT_EQ(c.offers[2].max_nodes, 1) << "d stands in two places at once, e in none";
  EXPECT_NE(notes(c).find("node d has both features"), std::string::npos);
  EXPECT_NE(notes(c).find("node e has none of the features"), std::string::npos);
}

TEST(InventoryOffers, WhoMayNotSubmit) {
  const char* inventory =
      R"({"nodes": [{"name": "h", "gpus": [{"type": "h100_sxm_80gb", "count": 8}], "cpus": 64, "memory_mib": 500000, "state": "down"}, {"name": "k", "gpus": [{"type": "h100_sxm_80gb", "count": 8}], "cpus": 64, "memory_mib": 500000}],
   "partitions": [{"name": "p", "nodes": ["k"], "allow_accounts": ["lab"]}, {"name": "q", "nodes": ["k"], "deny_accounts": ["guest"]}, {"name": "r", "nodes": ["h"]}, {"name": "s", "nodes": ["k"], "up": false}, {"name": "t", "nodes": ["k"], "allow_qos": ["high"]}]})";
  const auto c = make(inventory, "{}", {.user = "u", .account = "guest", .qos = "normal"});
  ASSERT_EQ(c.offers.size(), 5u);
  EXPECT_NE(c.offers[0].unavailable.find("AllowAccounts"), std::string::npos);
  EXPECT_NE(c.offers[1].unavailable.find("DenyAccounts"), std::string::npos);
  EXPECT_NE(c.offers[2].unavailable.find("1 down"), std::string::npos);
  EXPECT_NE(c.offers[3].unavailable.find("not up"), std::string::npos);
  EXPECT_NE(c.offers[4].unavailable.find("AllowQos"), std::string::npos);
  EXPECT_EQ(make(inventory, "{}").offers[0].unavailable, "") << "what is not known of the user is taken as met";
}

}  // namespace
}  // namespace shardfit::pricing
