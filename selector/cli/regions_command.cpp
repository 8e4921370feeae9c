// shardfit regions list | check REGION PIN | show REGION.
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"
#include "regions/countries.hpp"
#include "regions/pins.hpp"
#include "selector/cli/parse.hpp"
#include "selector/cli/text_table.hpp"

namespace shardfit::cli {
namespace {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

int list(const regions::Catalogue& catalogue, const std::vector<regions::Atom>& pins, const std::string& provider,
         bool json) {
  OrderedJson out = OrderedJson::array();
  TextTable table(
      {"<REGION", "<COUNTRY", "<CITY", "<OPERATOR", "<PARENTS", "<US AFFILIATE", "<SOVEREIGN", "<RESTS ON"});
  const auto sovereign = regions::parse_pins("sovereign", "");
  for (const auto& r : catalogue.records()) {
    if (!provider.empty() && r.provider != regions::provider_slug(provider)) continue;
    if (!pins.empty() && !regions::evaluate(pins, &r, now_seconds()).passes) continue;
    if (json) {
      out.push_back(regions::to_json(r));
      continue;
    }
    const auto s = regions::evaluate(sovereign, &r);
    std::vector<std::string> parents;
    for (const auto& p : r.parent_chain.value_or(std::vector<regions::Parent>{}))
      parents.push_back(p.country.value_or("?"));
    const bool unknown = !r.country || !r.operator_country || !r.parent_chain || !r.us_affiliate;
    table.add({r.id, r.country.value_or("?"), r.city.value_or("?"), r.operator_country.value_or("?"),
               !r.parent_chain   ? "?"
               : parents.empty() ? "none"
                                 : join(parents, ","),
               r.us_affiliate ? (*r.us_affiliate ? "yes" : "no") : "?",
               s.passes                                                   ? "yes"
               : unknown && s.reason.find("unknown") != std::string::npos ? "unknown"
                                                                          : "no",
               s.weakest == regions::Evidence::kNone ? "?" : regions::to_string(s.weakest)});
  }
  if (json) print(out.dump(2) + "\n");
  else print(table.empty() ? "No region matches.\n" : table.text());
  return kExitDone;
}

int check(const regions::Catalogue& catalogue, const std::string& region, const std::vector<std::string>& texts,
          bool json) {
  const auto pins = regions::parse_pins(texts, "PIN");
  const auto result = regions::evaluate(pins, &catalogue.at(region, "REGION"), now_seconds());
  if (json) {
    print(regions::to_json(result).dump(2) + "\n");
    return kExitDone;
  }
  TextTable table({"<PIN", "<FIELD", "<VALUE", "<OK", "<EVIDENCE", "<AS OF"});
  for (const auto& f : result.fields)
    table.add({f.rule, f.name, f.value, f.ok ? "yes" : "no",
               f.evidence == regions::Evidence::kNone ? "-" : regions::to_string(f.evidence),
               f.as_of.empty() ? "-" : f.as_of});
  print(region + (result.passes ? " passes" : " does not pass: " + result.rule + ": " + result.reason) + "\n" +
        table.text());
  return kExitDone;
}

int show(const regions::Catalogue& catalogue, const std::string& region, bool json) {
  const auto& r = catalogue.at(region, "REGION");
  const auto record = regions::to_json(r);
  if (json) {
    print(record.dump(2) + "\n");
    return kExitDone;
  }
  TextTable table({"<FIELD", "<VALUE", "<EVIDENCE", "<AS OF"});
  for (const auto& [key, value] : record.items()) {
    if (key == "evidence") continue;
    const auto e = r.evidence_of(key);
    table.add({key,
               value.is_null()     ? "unknown"
               : value.is_string() ? value.get<std::string>()
                                   : value.dump(),
               e.evidence == regions::Evidence::kNone ? "-" : regions::to_string(e.evidence),
               e.as_of.empty() ? "-" : e.as_of});
  }
  print(table.text());
  return kExitDone;
}

}  // namespace

int regions_command(const Arguments& arguments) {
  CLI::App app{"Regions: where they stand, whose law reaches them, and whether they satisfy a pin", "regions"};
  app.require_subcommand(1);
  std::string region, provider;
  std::vector<std::string> pins, filter;
  bool json = false;
  auto* l = app.add_subcommand("list", "The regions that are known");
  l->add_option("--pin", filter, "Only those that satisfy this pin; may be repeated")->take_all()->expected(1);
  l->add_option("--provider", provider, "Only those of this seller");
  l->add_flag("--json", json, "Print JSON");
  auto* c = app.add_subcommand("check", "Does REGION satisfy PIN? Shows every field it rests on");
  c->add_option("REGION", region, "Region, as verda/FIN-03")->required();
  c->add_option("PIN", pins, "Pins, as 'residency(EU|CH)' eu-sovereign; all must hold")->required();
  c->add_flag("--json", json, "Print JSON");
  auto* s = app.add_subcommand("show", "Everything known of REGION, with what it rests on");
  s->add_option("REGION", region, "Region, as verda/FIN-03")->required();
  s->add_flag("--json", json, "Print JSON");
  if (const auto status = parse(app, arguments)) return *status;

  const auto catalogue = regions::Catalogue::load(pricing::read_site().regions_dir);
  if (*l)
    return list(catalogue, filter.empty() ? std::vector<regions::Atom>{} : regions::parse_pins(filter, "--pin"),
                provider, json);
  if (*c) return check(catalogue, region, pins, json);
  return show(catalogue, region, json);
}

}  // namespace shardfit::cli
