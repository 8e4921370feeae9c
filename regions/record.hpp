// A region record: where machines stand, whose law reaches them, and what that knowledge rests on (docs/regions.md).
// An absent optional is "unknown" and never satisfies a pin; an empty parent_chain is "known to have none".
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::regions {

// What a field rests on, weakest first.
enum class Evidence {
  kNone,      // the field is unknown
  kRecalled,  // general knowledge, named in the record's `recalled`
  kListed,    // the seller's own feed or page
  kSite,      // the site's own override file
  kVerified,  // a document with URL and date
};
const char* to_string(Evidence evidence);
std::optional<Evidence> parse_evidence(std::string_view word);  // listed | site | verified | recalled

struct Parent {
  std::string name;
  std::optional<std::string> country;  // ISO 3166-1 alpha-2
  std::optional<double> share;         // 0..1
};

struct Certification {
  std::string scheme;                // "C5", "SecNumCloud", "ISO27001"
  std::optional<std::string> level;  // "type2", "3.2"
  std::optional<std::string> scope, valid_to, evidence_url;
  std::optional<double> level_number() const;  // 2 for "type2", 3.2 for "3.2"
};

struct FieldEvidence {
  Evidence evidence = Evidence::kNone;
  std::string as_of;  // "" = not dated
  std::string url;    // the document of a verified field
};

struct Record {
  std::string id, provider, provider_region;  // "verda/FIN-03", "verda", "FIN-03"
  std::optional<std::string> city, country;   // country: ISO 3166-1 alpha-2
  std::optional<bool> in_eu, in_eea, gdpr_adequate;
  std::optional<std::string> gdpr_adequacy_decision, operator_legal_name, operator_country;
  std::optional<std::vector<Parent>> parent_chain;
  std::optional<bool> us_affiliate;
  std::optional<std::vector<Certification>> certifications;
  std::optional<int> seal_level;  // 0..4, EU Cloud Sovereignty Framework
  std::optional<std::string> staff_access, key_control, control_plane_country, telemetry_country, support_country,
      data_egress_path, subprocessors_url;
  std::optional<double> grid_gco2_kwh, tariff_eur_kwh, pue;
  std::optional<std::string> checked_at, checked_by, source;
  std::vector<std::string> recalled;                           // names of fields that are general knowledge
  std::map<std::string, FieldEvidence, std::less<>> evidence;  // of every known field

  FieldEvidence evidence_of(std::string_view field) const;  // kNone where unknown
};

// A record of the catalogue. Throws Error{unknown_key | wrong_type | missing_key | bad_country | contradiction}.
Record parse_record(const nlohmann::json& object, const std::string& where);
// Lays an override of the site over `record`: each key the object has replaces the field, with evidence `site` (null =
// unknown again).
void apply_override(Record& record, const nlohmann::json& object, const std::string& where);
nlohmann::ordered_json to_json(const Record& record);
// The field as JSON, null where unknown; `field` is a key of the record.
nlohmann::json field_value(const Record& record, std::string_view field);

}  // namespace shardfit::regions
