// Pins: predicates on a region record, joined by AND (docs/regions.md). Grammar:
//   residency(EU|EEA|CH|DE|...)   city(Berlin)   provider(verda|nebius)   sovereign   cert(C5>=2)   seal>=3
//   evidence(listed|site|verified)   and the alias eu-sovereign = residency(EU|EEA|CH) & sovereign
// Several in one string are joined by '&' or ';'. An unknown field never satisfies a pin.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "regions/catalogue.hpp"
#include "regions/record.hpp"

namespace shardfit::regions {

enum class AtomKind { kResidency, kCity, kProvider, kSovereign, kCert, kSeal, kEvidence };

struct Atom {
  AtomKind kind = AtomKind::kResidency;
  std::vector<std::string> words;         // residency: EU, EEA, country codes; city; provider; cert: the scheme
  std::optional<double> least;            // cert level, seal level
  Evidence evidence = Evidence::kListed;  // evidence(...): the least that will do
  std::string text;                       // canonical spelling, "residency(EU|CH)": the rule's name in decisions
};

// Expands aliases; drops repeated atoms. Throws Error{bad_pin} naming the atom and what is known.
std::vector<Atom> parse_pins(std::string_view text, const std::string& where);
std::vector<Atom> parse_pins(const std::vector<std::string>& texts, const std::string& where);

// One field that an atom rested on.
struct FieldCheck {
  std::string name;   // key of the record
  std::string value;  // as people read it; "unknown"
  bool ok = false;
  Evidence evidence = Evidence::kNone;
  std::string as_of;  // "" = not dated
  std::string rule;   // the atom
};

struct PinResult {
  bool passes = true;
  std::vector<FieldCheck> fields;
  std::string rule, reason;                // the first atom that failed and why; "" when it passes
  Evidence weakest = Evidence::kVerified;  // of the fields it rests on; kVerified when it rests on none
};

// `record` = nullptr: a region nobody knows; every pin fails. `now`: Unix seconds, for certificates that ended; 0 = do
// not look.
PinResult evaluate(const std::vector<Atom>& pins, const Record* record, std::int64_t now = 0);
// A place that a job names: a country code ("DE") or a region id. For a country only residency can be judged: provider,
// city, certificates and owners of a bare country are unknown and fail; `where` is named in the reason
// ("locations/data").
PinResult check_location(std::string_view place, const std::vector<Atom>& pins, const Catalogue& catalogue,
                         const std::string& where = "", std::int64_t now = 0);
nlohmann::ordered_json to_json(const PinResult& result);

}  // namespace shardfit::regions
