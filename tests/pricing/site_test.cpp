// The site file: every key, what by_feature inherits, and what is refused.
#include "pricing/site.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "pricing/inventory.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::pricing {
namespace {

// As docs/formats.md shows it.
constexpr const char* kExample =
    R"({"cluster": "c1", "currency": "EUR", "state_dir": "/var/lib/shardfit", "spool": "/var/spool/shardfit/jobs.ndjson",
 "regions_dir": "/etc/shardfit/regions.d", "plan_dir": null, "decide_timeout_seconds": 3, "price_max_age": {"on_demand": "7d", "spot": "24h"},
 "partitions": {"h100": {"region": "verda/FIN-03", "gpu": "h100_sxm_80gb", "price": {"provider": "verda", "instance": "8H100.80S.176V"}, "host": {"pcie_gbs": 55}},
                "cpu": {"gpu": "cpu", "gpus_per_node": 2, "device_memory_gib": 6, "price": {"amount": 0.4, "currency": "EUR", "per": "node_hour"}},
                "mixed": {"host": {"pcie_gbs": 25}, "by_feature": {"fin3": {"region": "verda/FIN-03"}, "zrh": {"region": "oci/eu-zurich-1", "host": {"pcie_gbs": 50}}}}},
 "gpu_names": {"h100": "h100_sxm_80gb"},
 "policy": {"default": {"pins": []}, "accounts": {"clinic": {"pins": ["eu-sovereign"]}}, "users": {}, "qos": {}, "partitions": {}},
 "budgets": {"accounts": {"clinic": {"amount": 20000, "currency": "EUR", "per": "month", "warn": 0.8, "refuse": 1.0}}}})";

TEST(Site, ReadsEveryKey) {
  const Site s = parse_site(parse_json(kExample), "shardfit.conf");
  EXPECT_EQ(s.cluster, "c1");
  EXPECT_EQ(s.price_max_age.on_demand_seconds, 7 * 86400);
  EXPECT_EQ(s.price_max_age.spot_seconds, 86400);
  EXPECT_EQ(s.partitions.at("h100").price->instance, "8H100.80S.176V");
  EXPECT_EQ(s.partitions.at("cpu").price->stated->amount, 0.4);
  EXPECT_EQ(s.partitions.at("cpu").gpus_per_node, 2);
  const auto& features = s.partitions.at("mixed").by_feature;
  ASSERT_EQ(features.size(), 2u);
  EXPECT_EQ(features[0].first, "fin3");
  EXPECT_EQ(features[0].second.host.pcie_gbs, 25) << "inherited from the partition";
  EXPECT_EQ(features[1].second.host.pcie_gbs, 50);
  EXPECT_EQ(s.policy.accounts.at("clinic"), std::vector<std::string>{"eu-sovereign"});
  EXPECT_EQ(s.account_budgets.at("clinic").amount, 20000);
}

TEST(Site, EmptyIsAllDefaults) {
  const Site s = parse_site(parse_json("{}"), "x");
  EXPECT_EQ(s.currency, "EUR");
  EXPECT_EQ(s.decide_timeout_seconds, 3);
  EXPECT_TRUE(s.policy.empty() && s.partitions.empty());
}

TEST(Site, RefusesWhatItDoesNotKnow) {
  const struct {
    const char *text, *code, *where;
  } cases[] = {{R"({"partition": {}})", "unknown_key", "/partition"},
               {R"({"partitions": {"a": {"regoin": "x"}}})", "unknown_key", "/partitions/a/regoin"},
               {R"({"partitions": {"a": {"by_feature": {"f": {"by_feature": {}}}}}})", "unknown_key",
                "/partitions/a/by_feature/f/by_feature"},
               {R"({"partitions": {"a": {"price": {}}}})", "missing_key", "/partitions/a/price"},
               {R"({"partitions": {"a": {"price": {"amount": 1, "currency": "euro"}}}})", "bad_currency",
                "/partitions/a/price/currency"},
               {R"({"partitions": {"a": {"host": {"pcie_gb": 1}}}})", "unknown_key", "/partitions/a/host/pcie_gb"},
               {R"({"policy": {"accounts": {"x": {"pins": ["souvereign"]}}}})", "bad_pin", "/policy/accounts/x/pins/0"},
               {R"({"price_max_age": {"spot": "soon"}})", "bad_duration", "/price_max_age/spot"},
               {R"({"currency": "XXX"})", "bad_currency", "/currency"},
               {R"([1])", "wrong_type", ""}};
  for (const auto& c : cases) {
    try {
      parse_site(parse_json(c.text), "shardfit.conf");
      ADD_FAILURE() << c.text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, c.code) << c.text << ": " << e.what();
      EXPECT_EQ(e.where, c.where) << c.text;
      EXPECT_EQ(e.file, "shardfit.conf");
    }
  }
}

TEST(Inventory, RoundTripAndRefusals) {
  const char* text =
      R"({"cluster": "c1", "nodes": [{"name": "n1", "gpus": [{"type": "h100", "count": 8}], "cpus": 64, "cores": 32, "memory_mib": 1000000, "features": ["zrh"], "state": "drained", "reason": "fan"}],
    "partitions": [{"name": "p", "is_default": true, "up": true, "nodes": ["n1"], "max_seconds": 86400, "allow_accounts": ["a"]}]})";
  const Inventory inv = parse_inventory(parse_json(text));
  EXPECT_EQ(parse_json(to_json(inv).dump()), parse_json(text));
  for (
      const char* bad :
      {R"({"nodes": [], "partitions": [{"name": "p", "nodes": ["n9"]}]})",
       R"({"nodes": [{"name": "a", "cpus": 1, "memory_mib": 1}, {"name": "a", "cpus": 1, "memory_mib": 1}], "partitions": []})",
       R"({"nodes": [{"name": "a", "cpus": 0, "memory_mib": 1}], "partitions": []})",
       R"({"nodes": 3, "partitions": []})", R"({"partitions": []})"})
    EXPECT_THROW(parse_inventory(parse_json(bad)), Error) << bad;
}

}  // namespace
}  // namespace shardfit::pricing
