// Pins over the shipped catalogue. Golden answers: the checks of the region notes (a Stockholm region of a US parent is
// in the EU and not sovereign; Zurich is neither EU nor EEA; Norway is EEA only; a blank region fails everything).
#include "regions/pins.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"

namespace shardfit::regions {
namespace {

const Catalogue& catalogue() {
  static const Catalogue c = Catalogue::shipped();
  return c;
}

PinResult check(const std::string& region, const std::string& pins) {
  const Record* r = catalogue().find(region);
  EXPECT_NE(r, nullptr) << region;
  return evaluate(parse_pins(pins, "pin"), r);
}

TEST(Pins, GoldenChecks) {
  EXPECT_TRUE(check("aws/eu-north-1", "residency(EU)").passes);
  EXPECT_EQ(check("aws/eu-north-1", "sovereign").rule, "sovereign");
  EXPECT_FALSE(check("gcp/europe-west6", "residency(EU)").passes);
  EXPECT_TRUE(check("gcp/europe-west6", "residency(EU|CH)").passes);
  EXPECT_FALSE(check("hyperstack/NORWAY-1", "residency(EU)").passes);
  EXPECT_TRUE(check("hyperstack/NORWAY-1", "residency(EEA)").passes);
  EXPECT_FALSE(check("gcp/europe-west2", "residency(EU|EEA|CH)").passes);
  EXPECT_TRUE(check("gcp/europe-west2", "residency(UK)").passes);
  EXPECT_TRUE(check("verda/FIN-03", "residency(EU)").passes);
  EXPECT_TRUE(check("verda/FIN-03", "sovereign").passes);
  for (const char* pin : {"residency(EU)", "residency(EEA|CH)", "residency(IT)", "sovereign", "city(Frosinone)",
                          "eu-sovereign", "cert(C5>=2)", "seal>=3"})
    EXPECT_FALSE(check("seeweb/blank", pin).passes) << pin;
}

TEST(Pins, AliasNamesTheAtomThatFailed) {
  EXPECT_EQ(check("aws/eu-north-1", "eu-sovereign").rule, "sovereign");
  EXPECT_EQ(check("aws/us-east-1", "eu-sovereign").rule, "residency(EU|EEA|CH)");
  EXPECT_TRUE(check("verda/FIN-03", "eu-sovereign").passes);
}

TEST(Pins, SovereignSaysWhichFieldFailed) {
  const auto r = check("aws/eu-north-1", "sovereign");
  ASSERT_EQ(r.fields.size(), 4u);
  EXPECT_TRUE(r.fields[0].ok);   // country SE
  EXPECT_TRUE(r.fields[1].ok);   // operator LU
  EXPECT_FALSE(r.fields[2].ok);  // parent US
  EXPECT_FALSE(r.fields[3].ok);  // US affiliate
  EXPECT_NE(r.reason.find("Amazon.com"), std::string::npos) << r.reason;
  // Unknown parents are not "no parents".
  EXPECT_NE(check("lyceum/berlin", "sovereign").reason.find("operator_country is unknown"), std::string::npos);
}

TEST(Pins, CityFoldsCaseAndMarks) {
  EXPECT_TRUE(check("lyceum/zurich", "city(Zürich)").passes);
  EXPECT_TRUE(check("lyceum/berlin", "city(BERLIN)").passes);
  EXPECT_FALSE(check("lyceum/berlin", "city(Bern)").passes);
  EXPECT_FALSE(check("verda/FIN-03", "city(Helsinki)").passes) << "unknown city";
}

TEST(Pins, EvidenceDemandsMore) {
  EXPECT_TRUE(check("aws/eu-north-1", "residency(EU) & evidence(listed)").passes);
  const auto r = check("verda/FIN-03", "sovereign;evidence(listed)");
  EXPECT_FALSE(r.passes);
  EXPECT_EQ(r.rule, "evidence(listed)");
  EXPECT_EQ(check("verda/FIN-03", "sovereign").weakest, Evidence::kRecalled);
  EXPECT_EQ(check("aws/eu-north-1", "residency(EU)").weakest, Evidence::kListed);
}

TEST(Pins, ProviderAndSeveralAtoms) {
  EXPECT_TRUE(check("verda/FIN-03", "provider(nebius|verda)").passes);
  EXPECT_FALSE(check("verda/FIN-03", "provider(nebius)").passes);
  EXPECT_TRUE(check("oci/eu-zurich-1", "provider(Oracle OCI)").passes);
  EXPECT_EQ(parse_pins("residency(EU) AND sovereign; cert(C5>=2)&evidence(listed)", "").size(), 4u);
  EXPECT_EQ(parse_pins("city(Brighton and Hove)", "").front().text, "city(Brighton and Hove)");
  EXPECT_EQ(parse_pins(std::vector<std::string>{"residency(eu)", "residency(EU)", "eu-sovereign"}, "/pins").size(), 3u);
}

Record record_of(const char* text) { return parse_record(parse_json(text), ""); }

TEST(Pins, CertificatesHaveLevelsAndAnEnd) {
  const Record r = record_of(
      R"({"id":"x/y","country":"DE","certifications":[{"scheme":"C5","level":"type1"},{"scheme":"SecNumCloud","level":"3.2","valid_to":"2026-06-30"}],"seal_level":3})");
  const auto says = [&](const char* pin, const char* now = "2026-01-01") {
    return evaluate(parse_pins(pin, ""), &r, *parse_time(now)).passes;
  };
  EXPECT_TRUE(says("cert(c5)"));
  EXPECT_TRUE(says("cert(C5>=type1)"));
  EXPECT_FALSE(says("cert(C5>=2)"));
  EXPECT_TRUE(says("cert(SecNumCloud>=3.2)"));
  EXPECT_TRUE(says("cert(SecNumCloud)", "2026-06-30"));
  EXPECT_FALSE(says("cert(SecNumCloud)", "2026-07-01"));
  EXPECT_FALSE(says("cert(ISO27001)"));
  EXPECT_TRUE(says("seal>=3"));
  EXPECT_FALSE(says("seal>=4"));
}

TEST(Pins, EmptyParentChainIsKnownToBeEmpty) {
  const Record none =
      record_of(R"({"id":"x/y","country":"DE","operator_country":"DE","parent_chain":[],"us_affiliate":false})");
  const Record unknown =
      record_of(R"({"id":"x/y","country":"DE","operator_country":"DE","parent_chain":null,"us_affiliate":false})");
  const Record lost = record_of(
      R"({"id":"x/y","country":"DE","operator_country":"DE","parent_chain":[{"name":"Holding","country":null}],"us_affiliate":false})");
  const auto pins = parse_pins("sovereign", "");
  EXPECT_TRUE(evaluate(pins, &none).passes);
  EXPECT_FALSE(evaluate(pins, &unknown).passes);
  EXPECT_FALSE(evaluate(pins, &lost).passes);
}

TEST(Pins, BadPinsNameTheRemedy) {
  for (const char* text : {"", "residency", "residency()", "residency(Germany)", "residency(XX)", "residency(EU",
                           "souvereign", "cert(>=2)", "cert(C5>=high)", "seal>3", "seal>=x", "evidence(sure)",
                           "sovereign(EU)", "city()", "provider(a||b)"}) {
    try {
      parse_pins(text, "/pins/0");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, "bad_pin") << text;
      EXPECT_EQ(e.where, "/pins/0");
      EXPECT_FALSE(e.remedy.empty()) << text;
    }
  }
}

TEST(Pins, LocationsOfAJob) {
  const auto says = [](const char* place, const char* pin) {
    return check_location(place, parse_pins(pin, ""), catalogue(), "locations/data");
  };
  EXPECT_TRUE(says("DE", "residency(EU)").passes);
  EXPECT_FALSE(says("US", "residency(EU)").passes);
  EXPECT_TRUE(says("verda/FIN-03", "eu-sovereign").passes);
  EXPECT_EQ(says("DE", "eu-sovereign").rule, "sovereign") << "nobody knows whose disks they are";
  const auto nowhere = says("moon/base-1", "residency(EU)");
  EXPECT_EQ(nowhere.rule, "residency(EU)");
  EXPECT_NE(nowhere.reason.find("locations/data"), std::string::npos);
  EXPECT_FALSE(evaluate(parse_pins("residency(EU)", ""), nullptr).passes);
}

}  // namespace
}  // namespace shardfit::regions
