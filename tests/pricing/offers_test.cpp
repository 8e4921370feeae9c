// Offers: the example of docs/formats.md, the way back, and what is refused.
#include "pricing/offers.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::pricing {
namespace {

constexpr const char* kExample =
    R"({"id": "verda-fin03-8xh100", "provider": "verda", "region": "verda/FIN-03", "cluster": "c1", "partition": "h100",
 "gpu": "h100_sxm_80gb", "gpus_per_node": 8, "max_nodes": 4, "min_gpus": 1,
 "host": {"vcpus": 176.0, "ram_gib": 1480.0, "ddr_gbs": 600.0, "pcie_gbs": 55.0, "cores_per_gpu": 22.0, "core_binding": true, "nvme": {"drives": 4.0, "capacity_gb": 6400.0, "read_gbs": 10.0, "write_gbs": 5.0}},
 "interconnect": {"gpu_link_gbs": 400.0, "node_gbs": 400.0},
 "price": {"amount": 18.32, "currency": "USD", "per": "node_hour", "kind": "on_demand", "as_of": "2026-08-22", "source": "feed"},
 "billing_increment_seconds": 1.0, "start_seconds": 300.0, "queue_seconds": 0.0,
 "egress": {"amount": 0.0, "currency": "USD", "per": "GB"}, "storage": {"amount": 0.08, "currency": "USD", "per": "GB_month"},
 "energy": {"node_watts": 8200.0, "pue": 1.3, "tariff": {"amount": 0.25, "currency": "EUR", "per": "kWh"}, "depreciation": {"amount": 6.1, "currency": "EUR", "per": "node_hour"}}})";

TEST(Offers, TheExampleGoesThereAndBack) {
  const Json json = parse_json(kExample);
  const Offer o = parse_offer(json, "/offers/0");
  EXPECT_EQ(o.host.nvme->read_gbs, 10);
  EXPECT_EQ(o.egress->amount, 0);
  EXPECT_EQ(o.energy->depreciation->amount, 6.1);
  EXPECT_EQ(Json(parse_json(to_json(o).dump())), json);
}

TEST(Offers, BlanksStayUnknown) {
  const Offer o = parse_offer(
      parse_json(
          R"({"id": "x", "gpu": "h100", "region": null, "price": null, "start_seconds": null, "host": {"ram_gib": null}})"),
      "");
  EXPECT_FALSE(o.price || o.start_seconds || o.host.ram_gib || o.egress || o.energy);
  EXPECT_EQ(o.region, "");
}

TEST(Offers, RefusesWithThePointer) {
  const struct {
    const char *text, *code, *where;
  } cases[] = {
      {R"({"gpu": "h100"})", "missing_key", "/o/id"},
      {R"({"id": "x"})", "missing_key", "/o/gpu"},
      {R"({"id": "x", "gpu": "g", "gpu_per_node": 8})", "unknown_key", "/o/gpu_per_node"},
      {R"({"id": "x", "gpu": "g", "gpus_per_node": 0})", "out_of_range", "/o/gpus_per_node"},
      {R"({"id": "x", "gpu": "g", "min_gpus": 2})", "out_of_range", "/o/min_gpus"},
      {R"({"id": "x", "gpu": "g", "host": {"ram_gib": 0}})", "out_of_range", "/o/host/ram_gib"},
      {R"({"id": "x", "gpu": "g", "price": {"amount": -1, "currency": "USD"}})", "out_of_range", "/o/price/amount"},
      {R"({"id": "x", "gpu": "g", "price": {"amount": 1}})", "missing_key", "/o/price/currency"},
      {R"({"id": "x", "gpu": "g", "price": {"amount": 1, "currency": "usd"}})", "bad_currency", "/o/price/currency"},
      {R"({"id": "x", "gpu": "g", "price": {"amount": 1, "currency": "USD", "per": "hour"}})", "unknown_word",
       "/o/price/per"},
      {R"({"id": "x", "gpu": "g", "price": {"amount": 1, "currency": "USD", "as_of": "yesterday"}})", "bad_time",
       "/o/price/as_of"},
      {R"({"id": "x", "gpu": "g", "plans": [1]})", "wrong_type", "/o/plans/0"},
      {R"({"id": "x", "gpu": "g", "energy": {"pue": 0.5}})", "out_of_range", "/o/energy/pue"}};
  for (const auto& c : cases) {
    try {
      parse_offer(parse_json(c.text), "/o");
      ADD_FAILURE() << c.text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, c.code) << c.text << ": " << e.what();
      EXPECT_EQ(e.where, c.where) << c.text;
    }
  }
}

TEST(Offers, ReadsAListOrAnObject) {
  const auto file =
      std::filesystem::temp_directory_path() / ("shardfit_offers_" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << "{\"offers\": [" << kExample << "]}";
  EXPECT_EQ(read_offers(file.string()).size(), 1u);
  std::ofstream(file) << "[" << kExample << "," << kExample << "]";
  try {
    read_offers(file.string());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, "duplicate");
    EXPECT_EQ(e.file, file.string());
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace shardfit::pricing
