#include "regions/record.hpp"

#include <algorithm>
#include <cstdlib>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/countries.hpp"

namespace shardfit::regions {
namespace {

// clang-format off
const std::vector<std::string> kFields = {
    "city", "country", "in_eu", "in_eea", "gdpr_adequate", "gdpr_adequacy_decision", "operator_legal_name", "operator_country", "parent_chain",
    "us_affiliate", "certifications", "seal_level", "staff_access", "key_control", "control_plane_country", "telemetry_country", "support_country",
    "data_egress_path", "subprocessors_url", "grid_gco2_kwh", "tariff_eur_kwh", "pue"};
// clang-format on

std::string country_code(const std::string& text, const std::string& where) {
  if (is_country(text)) return text;
  const auto meant = find_country(text);
  throw Error("bad_country", where, "\"" + text + "\" is not a country code",
              meant ? "write \"" + *meant + "\"" : "write the two letters of ISO 3166, as \"DE\"");
}

std::optional<std::string> country(ObjectReader& r, std::string_view key) {
  auto v = r.string(key);
  if (v) *v = country_code(*v, r.at(key));
  return v;
}

std::vector<Parent> parents(const Json& list, const std::string& where) {
  if (!list.is_array())
    throw Error("wrong_type", where, "a list of parents is needed, not " + brief(list),
                "write [] where there is none, null where it is unknown");
  std::vector<Parent> out;
  for (const auto& item : list) {
    ObjectReader r(item, where + "/" + std::to_string(out.size()));
    Parent p;
    p.name = r.required_string("name");
    p.country = country(r, "country");
    p.share = r.number("share", 0, 1);
    r.finish();
    out.push_back(std::move(p));
  }
  return out;
}

std::vector<Certification> certifications(const Json& list, const std::string& where) {
  if (!list.is_array()) throw Error("wrong_type", where, "a list of certificates is needed, not " + brief(list));
  std::vector<Certification> out;
  for (const auto& item : list) {
    ObjectReader r(item, where + "/" + std::to_string(out.size()));
    Certification c;
    c.scheme = r.required_string("scheme");
    if (const Json* v = r.get("level")) c.level = v->is_number() ? v->dump() : r.string("level");
    c.scope = r.string("scope");
    c.valid_to = r.string("valid_to");
    if (c.valid_to && !parse_time(*c.valid_to))
      throw Error("bad_time", r.at("valid_to"), "date \"" + *c.valid_to + "\" cannot be read",
                  "write it as 2027-06-30");
    c.evidence_url = r.string("evidence_url");
    r.finish();
    out.push_back(std::move(c));
  }
  return out;
}

// Reads the fields `object` states into `record`; those it does not name stay as they are.
void read_fields(Record& record, ObjectReader& r, const Json& object) {
  const auto stated = [&](std::string_view key) {
    const bool there = object.contains(std::string(key));
    if (!there) r.ignore(key);
    return there;
  };
  if (stated("city")) record.city = r.string("city");
  if (stated("country")) record.country = country(r, "country");
  if (stated("in_eu")) record.in_eu = r.boolean("in_eu");
  if (stated("in_eea")) record.in_eea = r.boolean("in_eea");
  if (stated("gdpr_adequate")) record.gdpr_adequate = r.boolean("gdpr_adequate");
  if (stated("gdpr_adequacy_decision")) record.gdpr_adequacy_decision = r.string("gdpr_adequacy_decision");
  if (stated("operator_legal_name")) record.operator_legal_name = r.string("operator_legal_name");
  if (stated("operator_country")) record.operator_country = country(r, "operator_country");
  if (stated("parent_chain")) {
    const Json* v = r.get("parent_chain");
    record.parent_chain = v ? std::optional(parents(*v, r.at("parent_chain"))) : std::nullopt;
  }
  if (stated("us_affiliate")) record.us_affiliate = r.boolean("us_affiliate");
  if (stated("certifications")) {
    const Json* v = r.get("certifications");
    record.certifications = v ? std::optional(certifications(*v, r.at("certifications"))) : std::nullopt;
  }
  if (stated("seal_level")) {
    const auto v = r.integer("seal_level", 0, 4);
    record.seal_level = v ? std::optional(static_cast<int>(*v)) : std::nullopt;
  }
  if (stated("staff_access")) record.staff_access = r.string("staff_access");
  if (stated("key_control")) record.key_control = r.string("key_control");
  if (stated("control_plane_country")) record.control_plane_country = country(r, "control_plane_country");
  if (stated("telemetry_country")) record.telemetry_country = country(r, "telemetry_country");
  if (stated("support_country")) record.support_country = country(r, "support_country");
  if (stated("data_egress_path")) {
    record.data_egress_path = r.string("data_egress_path");
    if (record.data_egress_path == "unknown") record.data_egress_path.reset();
  }
  if (stated("subprocessors_url")) record.subprocessors_url = r.string("subprocessors_url");
  if (stated("grid_gco2_kwh")) record.grid_gco2_kwh = r.number("grid_gco2_kwh", 0);
  if (stated("tariff_eur_kwh")) record.tariff_eur_kwh = r.number("tariff_eur_kwh", 0);
  if (stated("pue")) record.pue = r.number("pue", 1, 10);
  if (stated("checked_at")) {
    record.checked_at = r.string("checked_at");
    if (record.checked_at && !parse_time(*record.checked_at))
      throw Error("bad_time", r.at("checked_at"), "date \"" + *record.checked_at + "\" cannot be read",
                  "write it as 2026-08-22");
  }
  if (stated("checked_by")) record.checked_by = r.string("checked_by");
  if (stated("source")) record.source = r.string("source");
  r.ignore("latency_to_data");  // a measure of a pair of places, not of this one
}

// Documents of single fields: "verified": {"operator_country": {"url": "...", "as_of": "2026-08-01"}}.
void read_verified(Record& record, ObjectReader& r) {
  const Json* v = r.get("verified");
  if (!v) return;
  if (!v->is_object()) throw Error("wrong_type", r.at("verified"), "an object of fields is needed, not " + brief(*v));
  for (const auto& [field, document] : v->items()) {
    const std::string where = r.at("verified") + "/" + field;
    if (std::find(kFields.begin(), kFields.end(), field) == kFields.end()) {
      const auto near = nearest(field, kFields);
      throw Error("unknown_key", where, "unknown field \"" + field + "\"",
                  near ? "did you mean \"" + *near + "\"?" : "");
    }
    ObjectReader d(document, where);
    FieldEvidence e{Evidence::kVerified, d.required_string("as_of"), d.required_string("url")};
    if (!parse_time(e.as_of))
      throw Error("bad_time", d.at("as_of"), "date \"" + e.as_of + "\" cannot be read", "write it as 2026-08-22");
    d.finish();
    if (!field_value(record, field).is_null()) record.evidence[field] = e;
  }
}

void check(const Record& record, const std::string& where) {
  if (!record.country) return;
  if (record.in_eu && *record.in_eu != in_eu(*record.country))
    throw Error("contradiction", where + "/in_eu",
                std::string(*record.in_eu ? "true" : "false") + " contradicts country " + *record.country,
                "correct one of them, or leave in_eu out");
  if (record.in_eea && *record.in_eea != in_eea(*record.country))
    throw Error("contradiction", where + "/in_eea",
                std::string(*record.in_eea ? "true" : "false") + " contradicts country " + *record.country,
                "correct one of them, or leave in_eea out");
}

}  // namespace

const char* to_string(Evidence evidence) {
  switch (evidence) {
    case Evidence::kNone: return "none";
    case Evidence::kRecalled: return "recalled";
    case Evidence::kListed: return "listed";
    case Evidence::kSite: return "site";
    case Evidence::kVerified: return "verified";
  }
  return "none";
}

std::optional<Evidence> parse_evidence(std::string_view word) {
  for (const auto e : {Evidence::kRecalled, Evidence::kListed, Evidence::kSite, Evidence::kVerified})
    if (to_lower(word) == to_string(e)) return e;
  return std::nullopt;
}

std::optional<double> Certification::level_number() const {
  if (!level) return std::nullopt;
  const size_t digit = level->find_first_of("0123456789");
  if (digit == std::string::npos) return std::nullopt;
  return std::strtod(level->c_str() + digit, nullptr);
}

FieldEvidence Record::evidence_of(std::string_view field) const {
  const auto it = evidence.find(field);
  return it == evidence.end() ? FieldEvidence{} : it->second;
}

Record parse_record(const nlohmann::json& object, const std::string& where) {
  ObjectReader r(object, where);
  Record record;
  record.id = r.required_string("id");
  const size_t slash = record.id.find('/');
  record.provider = r.string("provider").value_or(record.id.substr(0, slash));
  record.provider_region =
      r.string("provider_region").value_or(slash == std::string::npos ? "" : record.id.substr(slash + 1));
  read_fields(record, r, object);
  record.recalled = r.strings("recalled").value_or(std::vector<std::string>{});
  for (const auto& field : kFields) {
    if (field_value(record, field).is_null()) continue;
    const bool recalled = std::find(record.recalled.begin(), record.recalled.end(), field) != record.recalled.end();
    record.evidence[field] = {recalled ? Evidence::kRecalled : Evidence::kListed,
                              recalled ? "" : record.checked_at.value_or(""), ""};
  }
  read_verified(record, r);
  r.finish();
  check(record, where);
  return record;
}

void apply_override(Record& record, const nlohmann::json& object, const std::string& where) {
  ObjectReader r(object, where);
  r.required_string("id");
  if (auto v = r.string("provider")) record.provider = *v;
  if (auto v = r.string("provider_region")) record.provider_region = *v;
  // A new country takes the flags that follow from it along, unless the override states them itself.
  const bool moves = object.contains("country");
  read_fields(record, r, object);
  if (moves && !object.contains("in_eu")) record.in_eu.reset();
  if (moves && !object.contains("in_eea")) record.in_eea.reset();
  const std::string as_of = object.contains("checked_at") ? record.checked_at.value_or("") : "";
  for (const auto& field : kFields) {
    if (field_value(record, field).is_null()) record.evidence.erase(field);
    else if (object.contains(field)) record.evidence[field] = {Evidence::kSite, as_of, ""};
    if (object.contains(field)) std::erase(record.recalled, field);
  }
  for (const auto& field : r.strings("recalled").value_or(std::vector<std::string>{})) {
    record.recalled.push_back(field);
    if (const auto it = record.evidence.find(field); it != record.evidence.end())
      it->second = {Evidence::kRecalled, "", ""};
  }
  read_verified(record, r);
  r.finish();
  check(record, where);
}

nlohmann::json field_value(const Record& record, std::string_view field) {
  const auto value = [](const auto& optional) { return optional ? Json(*optional) : Json(); };
  if (field == "provider") return record.provider;
  if (field == "city") return value(record.city);
  if (field == "country") return value(record.country);
  if (field == "in_eu")
    return record.in_eu ? Json(*record.in_eu) : record.country ? Json(in_eu(*record.country)) : Json();
  if (field == "in_eea")
    return record.in_eea ? Json(*record.in_eea) : record.country ? Json(in_eea(*record.country)) : Json();
  if (field == "gdpr_adequate") return value(record.gdpr_adequate);
  if (field == "gdpr_adequacy_decision") return value(record.gdpr_adequacy_decision);
  if (field == "operator_legal_name") return value(record.operator_legal_name);
  if (field == "operator_country") return value(record.operator_country);
  if (field == "us_affiliate") return value(record.us_affiliate);
  if (field == "seal_level") return value(record.seal_level);
  if (field == "staff_access") return value(record.staff_access);
  if (field == "key_control") return value(record.key_control);
  if (field == "control_plane_country") return value(record.control_plane_country);
  if (field == "telemetry_country") return value(record.telemetry_country);
  if (field == "support_country") return value(record.support_country);
  if (field == "data_egress_path") return value(record.data_egress_path);
  if (field == "subprocessors_url") return value(record.subprocessors_url);
  if (field == "grid_gco2_kwh") return value(record.grid_gco2_kwh);
  if (field == "tariff_eur_kwh") return value(record.tariff_eur_kwh);
  if (field == "pue") return value(record.pue);
  if (field == "parent_chain" && record.parent_chain) {
    Json list = Json::array();
    for (const auto& p : *record.parent_chain)
      list.push_back({{"name", p.name}, {"country", value(p.country)}, {"share", value(p.share)}});
    return list;
  }
  if (field == "certifications" && record.certifications) {
    Json list = Json::array();
    for (const auto& c : *record.certifications)
      list.push_back({{"scheme", c.scheme},
                      {"level", value(c.level)},
                      {"scope", value(c.scope)},
                      {"valid_to", value(c.valid_to)},
                      {"evidence_url", value(c.evidence_url)}});
    return list;
  }
  return nullptr;
}

nlohmann::ordered_json to_json(const Record& record) {
  nlohmann::ordered_json j{
      {"id", record.id}, {"provider", record.provider}, {"provider_region", record.provider_region}};
  for (const auto& field : kFields) j[field] = field_value(record, field);
  j["checked_at"] = record.checked_at ? Json(*record.checked_at) : Json();
  j["checked_by"] = record.checked_by ? Json(*record.checked_by) : Json();
  j["source"] = record.source ? Json(*record.source) : Json();
  nlohmann::ordered_json evidence = nlohmann::ordered_json::object();
  for (const auto& field : kFields)
    if (const auto e = record.evidence_of(field); e.evidence != Evidence::kNone) {
      auto& x =
          evidence[field] = {{"evidence", to_string(e.evidence)}, {"as_of", e.as_of.empty() ? Json() : Json(e.as_of)}};
      if (!e.url.empty()) x["url"] = e.url;
    }
  j["evidence"] = evidence;
  return j;
}

}  // namespace shardfit::regions
