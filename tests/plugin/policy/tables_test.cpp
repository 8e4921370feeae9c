#include "plugin/policy/tables.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"

namespace shardfit::policy {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

pricing::Site site(const char* text) { return pricing::parse_site(parse_json(text), "site.conf"); }

const char* const kSite = R"J({"cluster": "c", "state_dir": "/state",
  "partitions": {"h100": {"region": "verda/FIN-03"}, "us": {"region": "lambda/us-east-1"}, "odd\"name": {"region": "nowhere/x"}, "mixed": {"by_feature": {"fin": {"region": "verda/FIN-03"}, "zrh": {"region": "oci/eu-zurich-1"}}}},
  "policy": {"default": {"pins": ["residency(EU)"]}, "accounts": {"clinic": {"pins": ["eu-sovereign"]}, "open": {"pins": []}}, "users": {"ann": {"pins": ["city(Berlin)"]}}, "qos": {"q": {"pins": ["provider(verda)"]}}}})J";

TEST(PolicyTables, HoldPinsPartitionsAndFacts) {
  const auto catalogue = regions::Catalogue::shipped();
  const auto t = policy_tables(site(kSite), catalogue);
  const auto newline = t.find('\n');
  EXPECT_EQ(t.substr(0, newline), "-- shardfit policy 1 " + sha256_hex(t.substr(newline + 1)));
  EXPECT_EQ(t, policy_tables(site(kSite), catalogue));
  EXPECT_THAT(t, HasSubstr("default = {\"residency(EU)\"}"));
  EXPECT_THAT(t, HasSubstr("[\"clinic\"] = {\"residency(EU|EEA|CH)\", \"sovereign\"}"));
  EXPECT_THAT(t, HasSubstr("[\"open\"] = {}"));
  EXPECT_THAT(t, HasSubstr("[\"h100\"] = {region = \"verda/FIN-03\"}"));
  EXPECT_THAT(t, HasSubstr("[\"odd\\\"name\"]"));
  EXPECT_THAT(t, HasSubstr("by_feature = {{\"fin\", \"verda/FIN-03\"}, {\"zrh\", \"oci/eu-zurich-1\"}, }"));
  const auto facts = t.substr(t.find("facts = {"));
  EXPECT_THAT(facts, HasSubstr("[\"residency(fi)\"]"));
  EXPECT_THAT(facts, Not(HasSubstr("nowhere/x")));
}

TEST(PolicyTables, NameThePlaceOfABadPin) {
  auto s = site(R"J({"policy": {"accounts": {"clinic": {"pins": ["residency(EU)"]}}}})J");
  s.policy.accounts["clinic"] = {"residence(EU)"};
  try {
    policy_tables(s, regions::Catalogue::shipped());
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(std::string(e.what()), HasSubstr("/policy/accounts/clinic/pins"));
  }
}

TEST(PolicyPins, TheDefaultIsForAccountsWithoutAnEntry) {
  const auto s = site(kSite);
  EXPECT_THAT(policy_pins(s, "clinic", "", ""), ElementsAre("residency(EU|EEA|CH)", "sovereign"));
  EXPECT_THAT(policy_pins(s, "unknown", "", ""), ElementsAre("residency(EU)"));
  EXPECT_THAT(policy_pins(s, "", "", ""), ElementsAre("residency(EU)"));
  EXPECT_THAT(policy_pins(s, "open", "", ""), ElementsAre());
  EXPECT_THAT(policy_pins(s, "open", "ann", "q"), ElementsAre("city(Berlin)", "provider(verda)"));
}

TEST(PolicyWarnings, TellUnknownRegionsAndPinsThatNothingMeets) {
  const auto w = policy_warnings(site(kSite), regions::Catalogue::shipped());
  EXPECT_THAT(w, Contains(HasSubstr("nowhere/x")));
  EXPECT_THAT(w, Contains(HasSubstr("user ann: no partition")));
  EXPECT_THAT(w, Not(Contains(HasSubstr("account clinic"))));
}

}  // namespace
}  // namespace shardfit::policy
