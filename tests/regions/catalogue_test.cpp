// The shipped records, the site's overrides, and what a country or a region's name means.
#include "regions/catalogue.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/countries.hpp"
#include "regions/pins.hpp"

namespace shardfit::regions {
namespace {

namespace fs = std::filesystem;

struct TempDir {
  fs::path path = fs::temp_directory_path() / ("shardfit_regions_" + std::to_string(::getpid()) + "_" +
                                               ::testing::UnitTest::GetInstance()->current_test_info()->name());
  TempDir() { fs::create_directories(path); }
  ~TempDir() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) { std::ofstream(path / name) << text; }
};

TEST(Catalogue, ShippedRecords) {
  const auto c = Catalogue::shipped();
  EXPECT_EQ(c.records().size(), 98u);
  const Record* zurich = c.find("Oracle OCI", "eu-zurich-1");
  ASSERT_NE(zurich, nullptr);
  EXPECT_EQ(zurich->id, "oci/eu-zurich-1");
  EXPECT_EQ(zurich->country, "CH");
  EXPECT_EQ(c.find("VERDA/fin-03"), c.find("verda/FIN-03"));
  EXPECT_EQ(c.find("RunPod community", "any")->id, "runpod-community/any");
  EXPECT_EQ(c.find("nowhere/1"), nullptr);
  EXPECT_EQ(c.find("verda/FIN-03")->evidence_of("country").evidence, Evidence::kListed);
  EXPECT_EQ(c.find("verda/FIN-03")->evidence_of("operator_country").evidence, Evidence::kRecalled);
  EXPECT_EQ(c.find("verda/FIN-03")->evidence_of("city").evidence, Evidence::kNone);
  try {
    c.at("verda/FIN-3", "/region");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.remedy.find("verda/FIN-03"), std::string::npos) << e.what();
  }
}

TEST(Catalogue, SiteOverridesByField) {
  TempDir dir;
  dir.write("10-verda.json", R"({"id": "verda/FIN-03", "city": "Helsinki", "checked_at": "2026-08-01",
      "certifications": [{"scheme": "C5", "level": "type2"}],
      "verified": {"operator_country": {"url": "https://example.org/register.pdf", "as_of": "2026-07-15"}}})");
  dir.write(
      "20-own.json",
      R"([{"id": "own/berlin", "country": "DE", "city": "Berlin", "operator_country": "DE", "parent_chain": [], "us_affiliate": false}])");
  dir.write("notes.txt", "not a record");
  const auto c = Catalogue::load(dir.path.string());
  EXPECT_EQ(c.records().size(), 99u);
  const Record& verda = c.at("verda/FIN-03", "");
  EXPECT_EQ(verda.evidence_of("city").evidence, Evidence::kSite);
  EXPECT_EQ(verda.evidence_of("city").as_of, "2026-08-01");
  EXPECT_EQ(verda.evidence_of("operator_country").evidence, Evidence::kVerified);
  EXPECT_EQ(verda.evidence_of("parent_chain").evidence, Evidence::kRecalled)
      << "what the site did not state stays as it was";
  EXPECT_TRUE(evaluate(parse_pins("cert(C5>=2)", ""), &verda).passes);
  const Record& own = c.at("own/berlin", "");
  const auto result = evaluate(parse_pins("eu-sovereign & city(Berlin) & evidence(site)", ""), &own);
  EXPECT_TRUE(result.passes) << result.reason;
  EXPECT_EQ(own.provider, "own");
}

TEST(Catalogue, AnOverrideCanMoveARegionAndForgetAField) {
  TempDir dir;
  dir.write("a.json", R"({"id": "aws/us-east-1", "country": "DE", "us_affiliate": null})");
  const auto c = Catalogue::load(dir.path.string());
  const Record& r = c.at("aws/us-east-1", "");
  EXPECT_TRUE(evaluate(parse_pins("residency(EU)", ""), &r).passes);
  EXPECT_FALSE(r.us_affiliate.has_value());
  EXPECT_EQ(r.evidence_of("us_affiliate").evidence, Evidence::kNone);
}

TEST(Catalogue, BadOverridesNameFileAndKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"id": "a/b", "contry": "DE"})", "unknown_key"},
      {R"({"id": "a/b", "country": "Germany"})", "bad_country"},
      {R"({"country": "DE"})", "missing_key"},
      {R"({"id": "a/b", "country": "DE", "in_eu": false})", "contradiction"},
      {R"({"id": "a/b", "parent_chain": "none"})", "wrong_type"},
      {R"({"id": "a/b", "seal_level": 9})", "out_of_range"},
      {R"({"id": )", "bad_json"},
      {R"({"id": "a/b", "verified": {"cty": {"url": "u", "as_of": "2026-01-01"}}})", "unknown_key"}};
  for (const auto& [text, code] : cases) {
    TempDir dir;
    dir.write("site.json", text);
    try {
      Catalogue::load(dir.path.string());
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, code) << text;
      EXPECT_NE(e.file.find("site.json"), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(Catalogue::load("/nonexistent").records().size(), 98u);
}

TEST(Countries, GroupsAndNames) {
  EXPECT_TRUE(in_eu("DE") && in_eea("NO") && !in_eu("NO") && !in_eea("CH") && under_european_law("CH") &&
              !under_european_law("GB") && !in_eu(""));
  EXPECT_EQ(find_country("Germany"), "DE");
  EXPECT_EQ(find_country("uk"), "GB");
  EXPECT_EQ(find_country("Atlantis"), std::nullopt);
  EXPECT_FALSE(is_country("EU") || is_country("de") || is_country("XX") || is_country(" D"));
}

TEST(Countries, RegionNamesOfFeeds) {
  // clang-format off
  const struct { const char *provider, *region, *country; } cases[] = {
      {"aws", "eu-north-1", "SE"}, {"aws", "us-east-1d", "US"}, {"aws", "eu-central-2", "CH"}, {"gcp", "europe-west6", "CH"}, {"gcp", "europe-west4-b", "NL"},
      {"azure", "germanywestcentral", "DE"}, {"azure", "switzerlandnorth", "CH"}, {"azure", "East US", "US"}, {"azure", "westeurope", "NL"}, {"azure", "uksouth", "GB"},
      {"azure", "swedencentral", "SE"}, {"oci", "eu-zurich-1", "CH"}, {"oci", "af-casablanca-1", "MA"}, {"oci", "uk-london-1", "GB"}, {"vast", "France, FR", "FR"},
      {"vast", "Oklahoma, US", "US"}, {"vast", "Bacs-Kiskun, HU", "HU"}, {"verda", "FIN-03", "FI"}, {"fluidstack", "norway-4", "NO"}, {"runpod", "EU-RO-1", "RO"},
      {"runpod", "EUR-IS-1", "IS"}, {"lambda", "europe-central-1", "DE"}, {"nebius", "eu-north1", "FI"}, {"scaleway", "fr-par-2", "FR"}, {"scaleway", "nl-ams-1", "NL"},
      {"scaleway-via-shadeform", "warsaw-poland-1", "PL"}, {"ovhcloud", "GRA11", "FR"}, {"seeweb", "it-fr2", "IT"}, {"hetzner", "fsn1", "DE"}, {"exoscale", "ch-gva-2", "CH"}, {"hyperstack", "CANADA-1", "CA"},
      {"crusoe-via-shadeform", "culpeper-usa-1", "US"}, {"other", "romania-1", "RO"}, {"other", "Indianapolis", "US"}, {"fluidstack", "generic_us", "US"}, {"runpod", "CZ", "CZ"}, {"ibm", "eu-de", "DE"}, {"paperspace", "East Coast (NY2)", "US"}};
  // clang-format on
  for (const auto& c : cases)
    EXPECT_EQ(country_of_region(c.provider, c.region).value_or("?"), c.country) << c.provider << " " << c.region;
  for (const char* blank :
       {"", "any", "global", "unspecified", "  ", "(zones CH/AT/DE/BG; per-zone GPU offer not in source)"})
    EXPECT_EQ(country_of_region("seeweb", blank), std::nullopt) << blank;
}

// Every record of the shipped catalogue that names a country must agree with what its region's name says.
TEST(Countries, AgreeWithTheCatalogue) {
  const auto catalogue = Catalogue::shipped();
  int named = 0;
  for (const auto& r : catalogue.records()) {
    const auto said = country_of_region(r.provider, r.provider_region);
    if (!said) continue;
    ++named;
    EXPECT_EQ(said, r.country) << r.id;
  }
  EXPECT_GT(named, 80);
}

}  // namespace
}  // namespace shardfit::regions
