#include "plugin/policy/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/pins.hpp"

namespace shardfit::policy {
namespace {

std::string lua_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (u < 32 || u == 127) {
      out += fmt::format("\\{:03d}", u);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string key(std::string_view text) { return "[" + lua_string(text) + "]"; }

// Ranks as shardfit_policy.lua has them.
int rank(regions::Evidence evidence) {
  switch (evidence) {
    case regions::Evidence::kVerified: return 4;
    case regions::Evidence::kSite: return 3;
    case regions::Evidence::kListed: return 2;
    default: return 1;
  }
}

std::vector<std::string> atoms(const std::vector<std::string>& pins, const std::string& where) {
  std::vector<std::string> out;
  for (const auto& atom : regions::parse_pins(pins, where)) out.push_back(atom.text);
  return out;
}

std::string list(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const auto& w : words) out.push_back(lua_string(w));
  return "{" + join(out, ", ") + "}";
}

std::string pins_by_name(const char* section, const std::map<std::string, std::vector<std::string>>& entries) {
  std::string out = fmt::format("{} = {{", section);
  const std::string in_file = std::string(section) == "partition_pins" ? "partitions" : section;
  for (const auto& [name, pins] : entries)
    out += fmt::format("\n    {} = {},", key(name), list(atoms(pins, "/policy/" + in_file + "/" + name + "/pins")));
  return out + (entries.empty() ? "},\n" : "\n  },\n");
}

std::string value_text(const std::optional<std::string>& value) {
  return value && !value->empty() ? *value : "unknown";
}

// The failing field of an atom, "operator_country = US"; the first field when none fails.
std::string field_text(const regions::PinResult& result, const std::string& fallback) {
  for (const auto& f : result.fields) {
    if (!f.ok) return f.name + " = " + (f.value.empty() ? "unknown" : f.value);
  }
  return fallback + " = unknown";
}

// What one region satisfies: single words of pins, judged by the same code that decisions use.
std::string region_facts(const regions::Record& record) {
  std::vector<std::string> words = {"residency(EU)", "residency(EEA)"};
  if (record.country) words.push_back("residency(" + *record.country + ")");
  if (record.city) words.push_back("city(" + *record.city + ")");
  words.push_back("provider(" + record.provider + ")");
  std::string out = "{";
  for (const auto& word : words) {
    std::vector<regions::Atom> parsed;
    try {
      parsed = regions::parse_pins(word, "");
    } catch (const Error&) {
      continue;  // a city or seller whose name cannot be written as a pin: no pin can ask for it
    }
    const auto result = regions::evaluate(parsed, &record);
    if (result.passes) out += fmt::format("{} = {}, ", key(to_lower(word)), rank(result.weakest));
  }
  const auto sovereign = regions::evaluate(regions::parse_pins(std::string_view("sovereign"), ""), &record);
  if (sovereign.passes) out += fmt::format("sovereign = {}, ", rank(sovereign.weakest));
  if (record.seal_level)
    out += fmt::format("seal = {{level = {}, rank = {}}}, ", *record.seal_level,
                       rank(record.evidence_of("seal_level").evidence));
  if (record.certifications && !record.certifications->empty()) {
    std::map<std::string, const regions::Certification*> best;
    for (const auto& c : *record.certifications) {
      auto& b = best[to_lower(c.scheme)];
      if (!b || c.level_number().value_or(0) > b->level_number().value_or(0)) b = &c;
    }
    out += "certs = {";
    for (const auto& [scheme, c] : best) {
      out += fmt::format("{} = {{rank = {}", key(scheme), rank(record.evidence_of("certifications").evidence));
      if (const auto level = c->level_number()) out += fmt::format(", level = {}", *level);
      if (c->valid_to) out += fmt::format(", untilday = {}", parse_time(*c->valid_to).value_or(0) + 86399);
      out += "}, ";
    }
    out += "}, ";
  }
  out += fmt::format(
      "text = {{country = {}, city = {}, provider = {}, sovereign = {}, certifications = {}, seal_level = {}}}",
      lua_string("country = " + value_text(record.country)), lua_string("city = " + value_text(record.city)),
      lua_string("provider = " + record.provider), lua_string(field_text(sovereign, "operator_country")),
      lua_string(std::string("certifications = ") + (record.certifications ? "none that suffices" : "unknown")),
      lua_string("seal_level = " + (record.seal_level ? std::to_string(*record.seal_level) : std::string("unknown"))));
  return out + "}";
}

std::set<std::string> regions_in_use(const pricing::Site& site) {
  std::set<std::string> out;
  for (const auto& [name, p] : site.partitions) {
    if (!p.region.empty()) out.insert(p.region);
    for (const auto& [feature, nodes] : p.by_feature) {
      if (!nodes.region.empty()) out.insert(nodes.region);
    }
  }
  return out;
}

}  // namespace

std::string tables_file(const pricing::Site& site) { return site.state_dir + "/policy.lua"; }

std::string policy_tables(const pricing::Site& site, const regions::Catalogue& catalogue) {
  std::string out = "-- Written by shardfit policy publish from " +
                    (site.file.empty() ? std::string("no site file") : site.file) +
                    "; do not edit.\nreturn {\n  version = 1,\n";
  out += fmt::format("  default = {},\n", list(atoms(site.policy.default_pins, "/policy/default/pins")));
  out += "  " + pins_by_name("accounts", site.policy.accounts);
  out += "  " + pins_by_name("users", site.policy.users);
  out += "  " + pins_by_name("qos", site.policy.qos);
  out += "  " + pins_by_name("partition_pins", site.policy.partitions);
  out += "  partitions = {\n";
  for (const auto& [name, p] : site.partitions) {
    out += fmt::format("    {} = {{region = {}", key(name), lua_string(p.region));
    if (!p.by_feature.empty()) {
      out += ", by_feature = {";
      for (const auto& [feature, nodes] : p.by_feature)
        out += fmt::format("{{{}, {}}}, ", lua_string(feature),
                           lua_string(nodes.region.empty() ? p.region : nodes.region));
      out += "}";
    }
    out += "},\n";
  }
  out += "  },\n  facts = {\n";
  for (const auto& id : regions_in_use(site)) {
    if (const auto* record = catalogue.find(id)) out += fmt::format("    {} = {},\n", key(id), region_facts(*record));
  }
  out += "  },\n}\n";
  return "-- shardfit policy 1 " + sha256_hex(out) + "\n" + out;
}

std::vector<std::string> policy_pins(const pricing::Site& site, const std::string& account, const std::string& user,
                                     const std::string& qos) {
  std::vector<std::string> texts;
  const auto add = [&](const std::map<std::string, std::vector<std::string>>& from, const std::string& name) {
    const auto found = from.find(name);
    if (found == from.end()) return false;
    texts.insert(texts.end(), found->second.begin(), found->second.end());
    return true;
  };
  if (account.empty() || !add(site.policy.accounts, account))
    texts.insert(texts.end(), site.policy.default_pins.begin(), site.policy.default_pins.end());
  if (!user.empty()) add(site.policy.users, user);
  if (!qos.empty()) add(site.policy.qos, qos);
  return atoms(texts, "/policy");
}

std::vector<std::string> policy_warnings(const pricing::Site& site, const regions::Catalogue& catalogue) {
  std::vector<std::string> out;
  for (const auto& [name, p] : site.partitions) {
    const auto check = [&](const std::string& region, const std::string& of) {
      if (region.empty()) {
        out.push_back(of + " has no region: jobs with pins are refused there");
      } else if (!catalogue.find(region)) {
        out.push_back(of + " stands in region " + region +
                      ", which no record describes: jobs with pins are refused there; add it to " + site.regions_dir);
      }
    };
    if (p.by_feature.empty() || !p.region.empty()) check(p.region, "partition " + name);
    for (const auto& [feature, nodes] : p.by_feature)
      check(nodes.region.empty() ? p.region : nodes.region, "partition " + name + ", feature " + feature);
  }
  const auto nowhere = [&](const std::vector<std::string>& pins, const std::string& whose) {
    const auto parsed = regions::parse_pins(pins, "/policy");
    if (parsed.empty()) return;
    for (const auto& id : regions_in_use(site)) {
      if (regions::evaluate(parsed, catalogue.find(id)).passes) return;
    }
    out.push_back(whose + ": no partition of the site file satisfies its pins " + join(pins, " & ") +
                  ": its jobs can run nowhere");
  };
  nowhere(site.policy.default_pins, "policy.default");
  for (const auto& [name, pins] : site.policy.accounts) nowhere(pins, "account " + name);
  for (const auto& [name, pins] : site.policy.users) nowhere(pins, "user " + name);
  for (const auto& [name, pins] : site.policy.qos) nowhere(pins, "qos " + name);
  for (const auto& [name, pins] : site.policy.partitions) {
    if (!site.partitions.count(name))
      out.push_back("policy.partitions." + name + ": the site file describes no such partition");
  }
  return out;
}

}  // namespace shardfit::policy
