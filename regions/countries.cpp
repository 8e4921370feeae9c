#include "regions/countries.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "regions/base/text.hpp"

namespace shardfit::regions {
namespace {

// ISO 3166-1 alpha-2, assigned codes.
// clang-format off
constexpr std::string_view kCodes =
    "AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ CA CC CD CF CG CH "
    "CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN "
    "GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI "
    "LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM "
    "PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD "
    "TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW ";
// clang-format on
constexpr std::string_view kEu = "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK ";
constexpr std::string_view kEeaOnly = "IS LI NO ";

bool has_code(std::string_view list, std::string_view code) {
  if (code.size() != 2) return false;
  for (size_t i = 0; i + 2 < list.size() + 1; i += 3)
    if (list.substr(i, 2) == code) return true;
  return false;
}

using Entry = std::pair<std::string_view, std::string_view>;

// Names as sellers write them, lower case.
// clang-format off
constexpr Entry kNames[] = {
    {"argentina", "AR"}, {"australia", "AU"}, {"austria", "AT"}, {"bahrain", "BH"}, {"belgium", "BE"}, {"brazil", "BR"}, {"bulgaria", "BG"},
    {"canada", "CA"}, {"chile", "CL"}, {"china", "CN"}, {"colombia", "CO"}, {"croatia", "HR"}, {"cyprus", "CY"}, {"czechia", "CZ"},
    {"czech republic", "CZ"}, {"denmark", "DK"}, {"estonia", "EE"}, {"finland", "FI"}, {"france", "FR"}, {"germany", "DE"}, {"greece", "GR"},
    {"hong kong", "HK"}, {"hungary", "HU"}, {"iceland", "IS"}, {"india", "IN"}, {"indonesia", "ID"}, {"ireland", "IE"}, {"israel", "IL"},
    {"italy", "IT"}, {"japan", "JP"}, {"kazakhstan", "KZ"}, {"korea", "KR"}, {"south korea", "KR"}, {"latvia", "LV"}, {"liechtenstein", "LI"},
    {"lithuania", "LT"}, {"luxembourg", "LU"}, {"malaysia", "MY"}, {"malta", "MT"}, {"mexico", "MX"}, {"moldova", "MD"}, {"morocco", "MA"},
    {"netherlands", "NL"}, {"new zealand", "NZ"}, {"norway", "NO"}, {"oman", "OM"}, {"paraguay", "PY"}, {"philippines", "PH"}, {"poland", "PL"},
    {"portugal", "PT"}, {"qatar", "QA"}, {"romania", "RO"}, {"russia", "RU"}, {"saudi arabia", "SA"}, {"serbia", "RS"}, {"singapore", "SG"},
    {"slovakia", "SK"}, {"slovenia", "SI"}, {"south africa", "ZA"}, {"spain", "ES"}, {"sweden", "SE"}, {"switzerland", "CH"}, {"taiwan", "TW"},
    {"thailand", "TH"}, {"turkey", "TR"}, {"ukraine", "UA"}, {"united arab emirates", "AE"}, {"uae", "AE"}, {"united kingdom", "GB"}, {"uk", "GB"},
    {"england", "GB"}, {"united states", "US"}, {"usa", "US"}, {"vietnam", "VN"},
};
// clang-format on

// Region codes of the large clouds whose name does not spell the country: AWS.
// clang-format off
constexpr Entry kAws[] = {
    {"af-south-1", "ZA"}, {"ap-east-1", "HK"}, {"ap-east-2", "TW"}, {"ap-northeast-1", "JP"}, {"ap-northeast-2", "KR"}, {"ap-northeast-3", "JP"},
    {"ap-south-1", "IN"}, {"ap-south-2", "IN"}, {"ap-southeast-1", "SG"}, {"ap-southeast-2", "AU"}, {"ap-southeast-3", "ID"},
    {"ap-southeast-4", "AU"}, {"ap-southeast-5", "MY"}, {"ap-southeast-6", "NZ"}, {"ap-southeast-7", "TH"}, {"ca-central-1", "CA"},
    {"ca-west-1", "CA"}, {"cn-north-1", "CN"}, {"cn-northwest-1", "CN"}, {"eu-central-1", "DE"}, {"eu-central-2", "CH"}, {"eu-north-1", "SE"},
    {"eu-south-1", "IT"}, {"eu-south-2", "ES"}, {"eu-west-1", "IE"}, {"eu-west-2", "GB"}, {"eu-west-3", "FR"}, {"eusc-de-east-1", "DE"},
    {"il-central-1", "IL"}, {"me-central-1", "AE"}, {"me-south-1", "BH"}, {"mx-central-1", "MX"}, {"sa-east-1", "BR"}, {"us-east-1", "US"},
    {"us-east-2", "US"}, {"us-west-1", "US"}, {"us-west-2", "US"}, {"us-gov-east-1", "US"}, {"us-gov-west-1", "US"},
};
constexpr Entry kGcp[] = {
    {"africa-south1", "ZA"}, {"asia-east1", "TW"}, {"asia-east2", "HK"}, {"asia-northeast1", "JP"}, {"asia-northeast2", "JP"},
    {"asia-northeast3", "KR"}, {"asia-south1", "IN"}, {"asia-south2", "IN"}, {"asia-southeast1", "SG"}, {"asia-southeast2", "ID"},
    {"asia-southeast3", "TH"}, {"australia-southeast1", "AU"}, {"australia-southeast2", "AU"}, {"europe-central2", "PL"}, {"europe-north1", "FI"},
    {"europe-north2", "SE"}, {"europe-southwest1", "ES"}, {"europe-west1", "BE"}, {"europe-west2", "GB"}, {"europe-west3", "DE"},
    {"europe-west4", "NL"}, {"europe-west6", "CH"}, {"europe-west8", "IT"}, {"europe-west9", "FR"}, {"europe-west10", "DE"},
    {"europe-west12", "IT"}, {"me-central1", "QA"}, {"me-central2", "SA"}, {"me-west1", "IL"}, {"northamerica-northeast1", "CA"},
    {"northamerica-northeast2", "CA"}, {"northamerica-south1", "MX"}, {"southamerica-east1", "BR"}, {"southamerica-west1", "CL"},
};
// Azure names carry the country (germanywestcentral) but for these.
constexpr Entry kAzure[] = {
    {"northeurope", "IE"}, {"westeurope", "NL"}, {"eastasia", "HK"}, {"southeastasia", "SG"}, {"uksouth", "GB"}, {"ukwest", "GB"},
    {"uaenorth", "AE"}, {"uaecentral", "AE"}, {"centralus", "US"}, {"eastus", "US"}, {"eastus2", "US"}, {"eastus3", "US"}, {"northcentralus", "US"},
    {"southcentralus", "US"}, {"westcentralus", "US"}, {"westus", "US"}, {"westus2", "US"}, {"westus3", "US"}, {"usgovvirginia", "US"},
    {"usgovarizona", "US"}, {"usgovtexas", "US"}, {"jioindiawest", "IN"}, {"jioindiacentral", "IN"}, {"centralindia", "IN"}, {"southindia", "IN"},
    {"westindia", "IN"}, {"chilecentral", "CL"},
};
// Words inside a region's name (cities, states) that place it: OCI, Vultr, Shadeform and the like.
constexpr Entry kPlaces[] = {
    {"abudhabi", "AE"}, {"dubai", "AE"}, {"amsterdam", "NL"}, {"frankfurt", "DE"}, {"zurich", "CH"}, {"turin", "IT"}, {"milan", "IT"}, {"rome", "IT"},
    {"frosinone", "IT"}, {"lugano", "CH"}, {"geneva", "CH"}, {"paris", "FR"}, {"marseille", "FR"}, {"gravelines", "FR"}, {"strasbourg", "FR"}, {"madrid", "ES"},
    {"stockholm", "SE"}, {"jovanovac", "RS"}, {"london", "GB"}, {"cardiff", "GB"}, {"newport", "GB"}, {"manchester", "GB"}, {"warsaw", "PL"},
    {"bucharest", "RO"}, {"sofia", "BG"}, {"prague", "CZ"}, {"vienna", "AT"}, {"berlin", "DE"}, {"munich", "DE"}, {"falkenstein", "DE"},
    {"nuremberg", "DE"}, {"bavaria", "DE"}, {"helsinki", "FI"}, {"mantsala", "FI"}, {"oslo", "NO"}, {"dublin", "IE"}, {"lisbon", "PT"}, {"luxembourg", "LU"},
    {"jerusalem", "IL"}, {"telaviv", "IL"}, {"casablanca", "MA"}, {"johannesburg", "ZA"}, {"hyderabad", "IN"}, {"mumbai", "IN"}, {"bangalore", "IN"},
    {"delhi", "IN"}, {"chennai", "IN"}, {"osaka", "JP"}, {"tokyo", "JP"}, {"seoul", "KR"}, {"chuncheon", "KR"}, {"singapore", "SG"}, {"batam", "ID"},
    {"jakarta", "ID"}, {"sydney", "AU"}, {"melbourne", "AU"}, {"canberra", "AU"}, {"montreal", "CA"}, {"toronto", "CA"}, {"calgary", "CA"}, {"quebec", "CA"},
    {"ashburn", "US"}, {"phoenix", "US"}, {"sanjose", "US"}, {"chicago", "US"}, {"monterrey", "MX"}, {"queretaro", "MX"}, {"saopaulo", "BR"},
    {"vinhedo", "BR"}, {"santiago", "CL"}, {"valparaiso", "CL"}, {"bogota", "CO"}, {"jeddah", "SA"}, {"riyadh", "SA"}, {"neom", "SA"}, {"taipei", "TW"},
    {"taichung", "TW"}, {"newyork", "US"}, {"texas", "US"}, {"oklahoma", "US"}, {"virginia", "US"}, {"california", "US"}, {"oregon", "US"}, {"utah", "US"},
    {"ohio", "US"}, {"kansas", "US"}, {"dallas", "US"}, {"houston", "US"}, {"austin", "US"}, {"atlanta", "US"}, {"miami", "US"}, {"seattle", "US"},
    {"losangeles", "US"}, {"siliconvalley", "US"}, {"kansascity", "US"}, {"desmoines", "US"}, {"saltlakecity", "US"}, {"culpeper", "US"}, {"dulles", "US"},
    {"washington", "US"}, {"newjersey", "US"}, {"arizona", "US"}, {"nevada", "US"}, {"florida", "US"}, {"illinois", "US"}, {"northcarolina", "US"},
    {"minnesota", "US"}, {"michigan", "US"}, {"wisconsin", "US"}, {"indiana", "US"}, {"indianapolis", "US"}, {"newmexico", "US"}, {"eastcoast", "US"}, {"westcoast", "US"}, {"pennsylvania", "US"}, {"slovenia", "SI"}, {"hongkong", "HK"},
};
// clang-format on
// Names that belong to one seller.
struct SellerRegion {
  std::string_view provider, region, country;
};
// clang-format off
constexpr SellerRegion kSellers[] = {
    {"nebius", "eu-north1", "FI"}, {"nebius", "eu-north2", "IS"}, {"nebius", "eu-west1", "FR"}, {"nebius", "eu-west2", "GB"}, {"nebius", "uk-south1", "GB"}, {"nebius", "us-central1", "US"}, {"nebius", "me-west1", "IL"},
    {"lambda", "europe-central-1", "DE"}, {"lambda", "europe-south-1", "IT"}, {"lambda", "me-west-1", "IL"}, {"lambda", "asia-south-1", "IN"},
    {"lambda", "asia-northeast-1", "JP"}, {"lambda", "asia-northeast-2", "JP"}, {"lambda", "australia-east-1", "AU"},
    {"ovhcloud", "gra", "FR"}, {"ovhcloud", "rbx", "FR"}, {"ovhcloud", "sbg", "FR"}, {"ovhcloud", "par", "FR"}, {"ovhcloud", "de", "DE"},
    {"ovhcloud", "fra", "DE"}, {"ovhcloud", "lim", "DE"}, {"ovhcloud", "waw", "PL"}, {"ovhcloud", "uk", "GB"}, {"ovhcloud", "lon", "GB"}, {"ovhcloud", "bhs", "CA"},
    {"ovhcloud", "sgp", "SG"}, {"ovhcloud", "syd", "AU"}, {"ovhcloud", "vin", "US"}, {"ovhcloud", "hil", "US"},
    {"hetzner", "fsn1", "DE"}, {"hetzner", "nbg1", "DE"}, {"hetzner", "hel1", "FI"}, {"hetzner", "ash", "US"}, {"hetzner", "hil", "US"}, {"hetzner", "sin", "SG"},
    {"seeweb", "it-fr2", "IT"}, {"seeweb", "it-mi2", "IT"}, {"seeweb", "ch-lug1", "CH"}, {"seeweb", "bg-sof1", "BG"}, {"seeweb", "hr-zag1", "HR"},
    {"exoscale", "ch-gva-2", "CH"}, {"exoscale", "ch-dk-2", "CH"}, {"exoscale", "at-vie-1", "AT"}, {"exoscale", "at-vie-2", "AT"},
    {"exoscale", "de-fra-1", "DE"}, {"exoscale", "de-muc-1", "DE"}, {"exoscale", "bg-sof-1", "BG"}, {"exoscale", "hr-zag-1", "HR"},
    {"crusoe", "us", "US"}, {"paperspace", "europe (ams1)", "NL"}, {"crusoe", "eu-iceland1-a", "IS"}, {"digitalocean", "nyc", "US"}, {"digitalocean", "sfo", "US"}, {"digitalocean", "ams", "NL"},
    {"digitalocean", "fra", "DE"}, {"digitalocean", "lon", "GB"}, {"digitalocean", "tor", "CA"}, {"digitalocean", "atl", "US"}, {"digitalocean", "blr", "IN"}, {"digitalocean", "sgp", "SG"}, {"digitalocean", "syd", "AU"},
};
// clang-format on

template <size_t N>
std::optional<std::string> look_up(const Entry (&table)[N], std::string_view key) {
  for (const auto& [name, code] : table)
    if (name == key) return std::string(code);
  return std::nullopt;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// Words of letters; digits split off: "paris-france-1" -> paris, france; "FIN-03" -> fin.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : std::string(text) + " ") {
    if (std::isalpha(static_cast<unsigned char>(c)) || (static_cast<unsigned char>(c) & 0x80))
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!word.empty()) out.push_back(std::move(word)), word.clear();
  }
  return out;
}

}  // namespace

bool is_country(std::string_view code) { return has_code(kCodes, code); }
bool in_eu(std::string_view country) { return has_code(kEu, country); }
bool in_eea(std::string_view country) { return in_eu(country) || has_code(kEeaOnly, country); }
bool under_european_law(std::string_view country) { return in_eea(country) || country == "CH"; }

std::optional<std::string> find_country(std::string_view text) {
  const std::string t = trim(text);
  const std::string code = upper(t);
  if (code == "UK") return "GB";
  if (is_country(code)) return code;
  return look_up(kNames, to_lower(t));
}

std::optional<std::string> country_of_region(std::string_view provider, std::string_view region) {
  const std::string seller = to_lower(provider), name = to_lower(trim(region));
  if (name.empty() || name.size() > 200) return std::nullopt;
  for (const auto& s : kSellers)
    if (seller.find(s.provider) == 0 && seller.find("shadeform") == std::string::npos) {
      if (name == s.region) return std::string(s.country);
      // "GRA11", "fra1": the seller's site code with a number.
      if (name.size() > s.region.size() && name.compare(0, s.region.size(), s.region) == 0 &&
          std::isalpha(static_cast<unsigned char>(s.region.back())) &&
          std::all_of(name.begin() + static_cast<std::ptrdiff_t>(s.region.size()), name.end(),
                      [](unsigned char c) { return std::isdigit(c) || c == '-'; }))
        return std::string(s.country);
    }
  const auto zone_less = [&] {  // "us-east-1d", "europe-west4-b" -> the region
    std::string r = name;
    if (r.size() > 2 && std::isalpha(static_cast<unsigned char>(r.back())) &&
        std::isdigit(static_cast<unsigned char>(r[r.size() - 2])))
      r.pop_back();
    if (r.size() > 2 && r[r.size() - 2] == '-' && std::isalpha(static_cast<unsigned char>(r.back())))
      r.resize(r.size() - 2);
    return r;
  }();
  for (const auto& key : {name, zone_less}) {
    if (auto c = look_up(kAws, key)) return c;
    if (auto c = look_up(kGcp, key)) return c;
  }
  std::string packed;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c))) packed += c;
  if (auto c = look_up(kAzure, packed)) return c;
  if (auto c = find_country(name); c && name.size() > 2) return c;
  // "France, FR": the code after the comma decides ("California, US").
  if (const size_t comma = name.rfind(','); comma != std::string::npos)
    if (auto c = find_country(name.substr(comma + 1))) return c;
  // A country or a place spelled inside: "germanywestcentral", "NORWAY-1", "paris-france-1". The longest word decides
  // ("romania" holds "oman"), and a country goes before a place.
  const auto spelled = [&](const auto& table, size_t least) {
    std::string best, code;
    for (const auto& [word, country] : table) {
      std::string w(word);
      w.erase(std::remove(w.begin(), w.end(), ' '), w.end());
      if (w.size() >= least && w.size() > best.size() && packed.find(w) != std::string::npos)
        best = w, code = std::string(country);
    }
    return std::pair(best.size(), code);
  };
  const auto country = spelled(kNames, 4), place = spelled(kPlaces, 4);
  if (place.first > country.first) return place.second;
  if (country.first > 0) return country.second;
  const auto words = words_of(name);
  if (words.empty()) return std::nullopt;
  // "EU-RO-1", "EUR-IS-1", "it-fr2", "fr-par-2", "us-central1", "ca-mtl-1", "CA": a code as a word of its own. A
  // continent's prefix (eu, eur, ap, me, sa, af) is passed over.
  static constexpr std::string_view kContinents[] = {"eu", "eur", "ap", "oc",   "me",    "sa",
                                                     "af", "na",  "as", "asia", "europe"};
  const size_t first =
      std::find(std::begin(kContinents), std::end(kContinents), words[0]) != std::end(kContinents) ? 1 : 0;
  if (first < words.size() && words[first].size() == 2) {
    if (const auto code = find_country(words[first])) return code;
  }
  if (words[0] == "fin") return "FI";
  if (words[0] == "usa" || words[0] == "us") return "US";
  if (words.size() > 1 && (words.back() == "us" || words.back() == "usa")) return "US";  // "generic_us"
  return std::nullopt;
}

}  // namespace shardfit::regions
