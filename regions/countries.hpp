// Countries (ISO 3166-1 alpha-2) and the groups that pins name: EU, EEA and CH.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace shardfit::regions {

bool is_country(std::string_view code);             // an assigned alpha-2 code, capitals
bool in_eu(std::string_view country);               // the 27 members
bool in_eea(std::string_view country);              // EU + IS, LI, NO
bool under_european_law(std::string_view country);  // EU, EEA or CH
// "DE", "de", "Germany", "UK", "USA" -> code; nullopt where it names no country.
std::optional<std::string> find_country(std::string_view text);
// The country of a provider's region as feeds spell it: "eu-north-1" of aws, "europe-west4" of gcp, "France, FR",
// "paris-france-1", "FIN-03", "EU-RO-1". nullopt where it does not say ("", "any", "global").
std::optional<std::string> country_of_region(std::string_view provider, std::string_view region);

}  // namespace shardfit::regions
