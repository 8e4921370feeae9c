// Money, rates and total cost. The worked decisions are published throughputs at listed prices (USD an hour): cost of a
// million tokens on one GPU = price / (tokens per second x 3600) x 1e6.
#include "pricing/cost.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pricing/money.hpp"
#include "pricing/rates.hpp"
#include "regions/base/error.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

std::int64_t at(const char* text) { return *parse_time(text); }

Offer offer(double per_node_hour, std::int64_t gpus = 8, const char* currency = "USD") {
  Offer o;
  o.id = "o";
  o.gpu = "h100_sxm_80gb";
  o.gpus_per_node = gpus;
  o.max_nodes = 64;
  o.price = Price{per_node_hour, currency, "node_hour", "on_demand", "2026-08-22", "test", {}};
  o.billing_increment_seconds = 1;
  o.start_seconds = 0;
  o.queue_seconds = 0;
  return o;
}

RunNeeds needs(double seconds, std::int64_t gpus = 8) {
  RunNeeds n;
  n.gpus = gpus;
  n.seconds = seconds;
  n.storage_gb = 0;
  n.egress_gb = 0;
  return n;
}

double part(const Cost& c, const std::string& name) {
  for (const auto& [n, m] : c.parts)
    if (n == name) return m ? m->amount() : NAN;
  return INFINITY;
}

const Rates& rates() {
  static const Rates r = Rates::shipped();
  return r;
}

TEST(Money, IsDecimalExact) {
  Money sum(0, "EUR");
  for (int i = 0; i < 10; ++i) sum += Money(0.1, "EUR");
  EXPECT_EQ(sum, Money(1, "EUR"));
  EXPECT_EQ(Money(2.675, "EUR").to_string(), "2.68 EUR") << "the decimal, not its binary neighbour";
  EXPECT_EQ(Money(-0.5, "EUR").to_string(0), "-1 EUR");
  EXPECT_EQ(Money::parse("500EUR", "").amount(), 500);
  EXPECT_EQ(Money::parse("12.50 chf", "").to_string(), "12.50 CHF");
  EXPECT_EQ(Money::parse("USD 7", "").to_string(), "7.00 USD");
}

TEST(Money, NeverMixesCurrencies) {
  Money m(1, "EUR");
  EXPECT_THROW(m += Money(1, "USD"), Error);
  for (const char* bad :
       {"", "500", "EUR", "1,000EUR", "5 0EUR", "5EURO", "5EUX", "-5EUR", "1.2.3EUR", "99999999999EUR"})
    EXPECT_THROW(Money::parse(bad, "/max_cost"), Error) << bad;
  EXPECT_THROW(Money(1, "ABC"), Error);
  EXPECT_THROW(Money(1e10, "EUR"), Error);
  EXPECT_THROW(Money(9e9, "EUR") * 2, Error);
}

TEST(Rates, ConvertsThroughEuro) {
  EXPECT_EQ(rates().date(), "2024-12-31");
  EXPECT_DOUBLE_EQ(*rates().rate("EUR", "USD"), 1.0389);
  EXPECT_NEAR(*rates().rate("USD", "CHF"), 0.9412 / 1.0389, 1e-12);
  EXPECT_EQ(rates().convert(Money(1.0389, "USD"), "EUR").to_string(), "1.00 EUR");
  EXPECT_EQ(rates().age_seconds(at("2025-01-01")), 86400);
  EXPECT_FALSE(rates().rate("USD", "BRL"));
  try {
    rates().convert(Money(1, "BRL"), "EUR");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, "currency_rate_missing");
    EXPECT_NE(e.message.find("BRL"), std::string::npos);
  }
}

TEST(Rates, ReadsTheEcbsOwnForms) {
  // Single quotes and several days, as in eurofxref-daily.xml and eurofxref-hist-90d.xml: the newest day counts.
  const Rates r = Rates::parse(
      "<gesmes:Envelope><Cube><Cube time='2026-08-20'><Cube currency='USD' rate='1.1'/></Cube><Cube time='2026-08-21'><Cube currency='USD' rate='1.2'/></Cube></Cube>",
      "f");
  EXPECT_EQ(r.date(), "2026-08-21");
  EXPECT_EQ(r.rate("EUR", "USD"), 1.2);
  for (const char* bad :
       {"", "<html>", "<Cube time='2026-08-20'><Cube currency='USD' rate='-1'/></Cube>", "<Cube time='soon'>",
        "<Cube time='2026-08-20'><Cube currency='USD' rate='N/A'/>", "<Cube currency='USD"})
    EXPECT_THROW(Rates::parse(bad, "f"), Error) << bad;
}

// Published throughput x listed price: the cheaper side and the cost of a million tokens.
TEST(Cost, WorkedDecisions) {
  // clang-format off
  const struct { const char* id; double rate_a, price_a, usd_a, rate_b, price_b, usd_b; } cases[] = {
      {"W1 7B Zurich, H100 and A100-80", 10643, 10.00, 0.261, 4641, 4.00, 0.239}, {"W1 70B", 1039, 10.00, 2.674, 410, 4.00, 2.710},
      {"L1 7B Finland", 10643, 2.29, 0.0598, 4641, 1.29, 0.0772},                 {"L1 70B", 1039, 2.29, 0.612, 410, 1.29, 0.874},
      {"L2 AWS us-east", 10643, 6.88, 0.180, 4641, 3.43, 0.205},                  {"W3 LoRA 8B, H100 FI and 4090 DE", 12473, 2.29, 0.051, 3083, 0.40, 0.036}};
  // clang-format on
  for (const auto& c : cases) {
    const auto cost = [&](double tokens_per_second, double gpu_hour) {
      // Eight GPUs for the time in which each computes 1e9 tokens, so that rounding to whole seconds is nothing.
      return total_cost(offer(gpu_hour * 8), needs(1e9 / tokens_per_second), rates(), "USD", at("2026-08-22"))
                 .amount->amount() /
             8e3;
    };
    EXPECT_NEAR(cost(c.rate_a, c.price_a), c.usd_a, c.usd_a * 0.006) << c.id;
    EXPECT_NEAR(cost(c.rate_b, c.price_b), c.usd_b, c.usd_b * 0.006) << c.id;
  }
}

TEST(Cost, PartsOfAFullOffer) {
  Offer o = offer(36);
  o.start_seconds = 600;
  o.billing_increment_seconds = 3600;
  o.storage = UnitPrice{0.08, "USD", "GB_month"};
  o.egress = UnitPrice{0.09, "USD", "GB"};
  RunNeeds n = needs(5000, 16);
  n.storage_gb = 1000;
  n.egress_gb = 200;
  const Cost c = total_cost(o, n, rates(), "USD", at("2026-08-22"));
  EXPECT_EQ(c.billed_nodes, 2);
  EXPECT_EQ(c.billed_seconds, 7200) << "5600 s in whole hours";
  EXPECT_NEAR(part(c, "start"), 2 * 36 * 600 / 3600.0, 1e-9);
  EXPECT_NEAR(part(c, "compute") + part(c, "start"), 2 * 36 * 2, 1e-9)
      << "what the seller bills is compute and start together";
  EXPECT_NEAR(part(c, "egress"), 18, 1e-9);
  EXPECT_NEAR(part(c, "storage"), 80 * 5600 / (365.25 / 12 * 86400), 1e-6);
  EXPECT_EQ(part(c, "restarts"), 0);
  EXPECT_NEAR(c.amount->amount(), 144 + 18 + part(c, "storage"), 1e-6);
  EXPECT_EQ(c.seconds, 5600);
  EXPECT_TRUE(c.assumed.empty()) << c.assumed.front();
}

TEST(Cost, BlanksAreNullAndNamedNeverZero) {
  Offer o = offer(36);
  o.billing_increment_seconds = o.start_seconds = o.queue_seconds = std::nullopt;
  RunNeeds n;
  n.gpus = 8;
  n.seconds = 3600;
  const Cost c = total_cost(o, n, rates(), "USD", at("2026-08-22"));
  for (const char* name : {"start", "queue", "storage", "egress"}) EXPECT_TRUE(std::isnan(part(c, name))) << name;
  EXPECT_EQ(c.amount->amount(), 36);
  EXPECT_EQ(c.assumed.size(), 5u);
  EXPECT_TRUE(to_json(c)["parts"]["start"].is_null());
}

TEST(Cost, UnitsSold) {
  Offer o = offer(80);
  o.min_gpus = 8;
  EXPECT_EQ(total_cost(o, needs(3600, 1), rates(), "USD", at("2026-08-22")).amount->amount(), 80)
      << "a whole node is sold";
  o.min_gpus = 1;
  EXPECT_EQ(total_cost(o, needs(3600, 1), rates(), "USD", at("2026-08-22")).amount->amount(), 10);
  o.min_gpus = 32;
  EXPECT_EQ(total_cost(o, needs(3600, 8), rates(), "USD", at("2026-08-22")).amount->amount(), 320);
  o.min_gpus = 1;
  o.price->per = "gpu_hour";
  o.price->amount = 2;
  EXPECT_EQ(total_cost(o, needs(3600, 3), rates(), "USD", at("2026-08-22")).amount->amount(), 6);
}

TEST(Cost, SpotPaysForInterruptions) {
  Offer o = offer(36);
  o.price->kind = "spot";
  o.mtti_hours = 4;
  RunNeeds n = needs(36000);
  const Cost c = total_cost(o, n, rates(), "USD", at("2026-08-22"));
  // C = 60 s, MTTI 4 h, restart 10 min: 13 % (sqrt(120/14400) + 600/14400).
  EXPECT_NEAR(part(c, "restarts") / part(c, "compute"), 0.133, 0.001);
  EXPECT_NEAR(c.seconds / 36000, 1.133, 0.001);
  o.mtti_hours.reset();
  EXPECT_TRUE(std::isnan(part(total_cost(o, n, rates(), "USD", at("2026-08-22")), "restarts")));
}

TEST(Cost, StalePricesWidenAndSpotIsRefused) {
  Offer o = offer(36);
  const Cost fresh = total_cost(o, needs(3600), rates(), "USD", at("2026-08-22"));
  EXPECT_TRUE(fresh.flags.empty());
  EXPECT_EQ(fresh.low, fresh.high);
  const Cost old = total_cost(o, needs(3600), rates(), "USD", at("2026-11-26"));
  ASSERT_EQ(old.flags.size(), 1u);
  EXPECT_EQ(old.flags[0], "price stale: 96 days");
  EXPECT_LT(old.low->amount(), 36 * 0.95);
  EXPECT_GT(old.high->amount(), 36 * 1.05);
  EXPECT_EQ(old.amount->amount(), 36);
  o.price->kind = "spot";
  const Cost spot = total_cost(o, needs(3600), rates(), "USD", at("2026-08-24"));
  EXPECT_FALSE(spot.amount.has_value());
  EXPECT_EQ(spot.rule, "stale");
  o.price->kind = "on_demand";
  o.price->as_of = "2026";
  EXPECT_EQ(total_cost(o, needs(3600), rates(), "USD", at("2026-08-22")).flags[0], "price stale: 233 days")
      << "a vague date means its earliest day";
}

TEST(Cost, OwnedNodesPayEnergyAndDepreciation) {
  Offer o = offer(0);
  o.price.reset();
  // Measured: 6.74 kW of an 8xH100 node, 0.25 EUR/kWh, PUE 1.3 = 0.27 EUR a GPU hour.
  o.energy = Energy{6740, 1.3, UnitPrice{0.25, "EUR", "kWh"}, UnitPrice{6.1, "EUR", "node_hour"}};
  const Cost c = total_cost(o, needs(3600), rates(), "EUR", at("2026-08-22"));
  EXPECT_NEAR(part(c, "energy"), 6.74 * 1.3 * 0.25 + 6.1, 1e-9);
  EXPECT_NEAR((part(c, "energy") - 6.1) / 8, 0.27, 0.005);
  EXPECT_EQ(part(c, "compute"), 0);
  o.energy->depreciation.reset();
  const Cost none = total_cost(o, needs(3600), rates(), "EUR", at("2026-08-22"));
  EXPECT_EQ(none.rule, "price_missing");
  EXPECT_FALSE(none.amount.has_value());
}

TEST(Cost, CurrenciesAreConvertedOrNamed) {
  const Cost c = total_cost(offer(10.389), needs(3600), rates(), "EUR", at("2026-08-22"));
  EXPECT_NEAR(c.amount->amount(), 10, 1e-9);
  EXPECT_EQ(c.rate_date, "2024-12-31");
  const Cost missing = total_cost(offer(1, 8, "BRL"), needs(3600), rates(), "EUR", at("2026-08-22"));
  EXPECT_EQ(missing.rule, "currency_rate_missing");
  EXPECT_NE(missing.reason.find("BRL"), std::string::npos);
}

TEST(Cost, QuickAndLineAgreeWithTheWhole) {
  Offer o = offer(36);
  o.start_seconds = 123;
  o.billing_increment_seconds = 60;
  o.egress = UnitPrice{0.09, "EUR", "GB"};
  RunNeeds n = needs(5000, 24);
  n.egress_gb = 100;
  const Pricer p(o, rates(), "EUR", at("2026-08-22"));
  const double whole = p.cost(n).amount->amount();
  EXPECT_NEAR(*p.quick(n), whole, 1e-6);
  EXPECT_NEAR(p.line(n).at_zero + p.line(n).per_price_unit * 36, whole, 1e-6);
}

TEST(Cost, WaitingInASlurmQueueIsNotBilled) {
  Offer o = offer(36);
  o.queue_seconds = 3600;
  EXPECT_EQ(part(total_cost(o, needs(3600), rates(), "USD", at("2026-08-22")), "queue"), 36);
  o.partition = "h100";
  const Cost c = total_cost(o, needs(3600), rates(), "USD", at("2026-08-22"));
  EXPECT_EQ(part(c, "queue"), 0);
  EXPECT_EQ(c.seconds, 7200) << "the deadline sees it all the same";
}

}  // namespace
}  // namespace shardfit::pricing
