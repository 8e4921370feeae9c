#include "regions/pins.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/countries.hpp"

namespace shardfit::regions {
namespace {

const char* const kKnown =
    "residency(EU|EEA|CH|DE), city(Berlin), provider(verda|nebius), sovereign, eu-sovereign, cert(C5>=2), seal>=3, evidence(listed|site|verified)";

Error bad_pin(const std::string& atom, const std::string& where, const std::string& why,
              const std::string& remedy = "") {
  return {"bad_pin", where, "pin \"" + atom + "\" " + why,
          remedy.empty() ? std::string("known pins: ") + kKnown : remedy};
}

std::string number_text(double x) {
  return std::floor(x) == x ? std::to_string(static_cast<long long>(x)) : Json(x).dump();
}

double level_of(const std::string& atom, std::string text, const std::string& where) {
  text = to_lower(trim(text));
  if (text.compare(0, 4, "type") == 0) text = trim(text.substr(4));
  char* end = nullptr;
  const double v = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(v) || v < 0 || v > 1e6)
    throw bad_pin(atom, where, "has no level that can be read", "write it as cert(C5>=2) or seal>=3");
  return v;
}

Atom parse_atom(const std::string& raw, const std::string& where) {
  const std::string atom = trim(raw);
  Atom a;
  if (atom.size() > 400) throw bad_pin(atom.substr(0, 40) + "...", where, "is too long");
  std::string name = to_lower(atom), argument;
  bool has_argument = false;
  if (const size_t open = atom.find('('); open != std::string::npos) {
    if (atom.back() != ')' || atom.find('(', open + 1) != std::string::npos || atom.find(')') != atom.size() - 1)
      throw bad_pin(atom, where, "has unbalanced brackets");
    name = to_lower(trim(atom.substr(0, open)));
    argument = trim(atom.substr(open + 1, atom.size() - open - 2));
    has_argument = true;
  }
  const auto words = [&] {
    std::vector<std::string> out;
    for (const auto& w : split(argument, '|')) {
      out.push_back(trim(w));
      if (out.back().empty()) throw bad_pin(atom, where, "has an empty word");
    }
    return out;
  };
  if (!has_argument && name.compare(0, 4, "seal") == 0 && name.find(">=") != std::string::npos &&
      trim(name.substr(4, name.find(">=") - 4)).empty()) {
    a.kind = AtomKind::kSeal;
    a.least = level_of(atom, name.substr(name.find(">=") + 2), where);
    a.text = "seal>=" + number_text(*a.least);
    return a;
  }
  if (!has_argument && name == "sovereign") {
    a.kind = AtomKind::kSovereign;
    a.text = "sovereign";
    return a;
  }
  static const std::vector<std::string> with_argument = {"residency", "city", "provider", "cert", "evidence"};
  if (!has_argument || std::find(with_argument.begin(), with_argument.end(), name) == with_argument.end()) {
    if (has_argument && name == "sovereign") throw bad_pin(atom, where, "takes no argument", "write sovereign");
    if (!has_argument && std::find(with_argument.begin(), with_argument.end(), name) != with_argument.end())
      throw bad_pin(atom, where, "needs an argument",
                    "write " + name +
                        (name == "cert"       ? "(C5>=2)"
                         : name == "evidence" ? "(site)"
                         : name == "city"     ? "(Berlin)"
                         : name == "provider" ? "(verda)"
                                              : "(EU)"));
    std::vector<std::string> all = with_argument;
    all.insert(all.end(), {"sovereign", "eu-sovereign", "seal"});
    const auto near = nearest(name, all);
    throw bad_pin(atom, where, "is not known", near ? "did you mean " + *near + "? Known pins: " + kKnown : "");
  }
  if (argument.empty()) throw bad_pin(atom, where, "has an empty argument");
  if (name == "residency") {
    a.kind = AtomKind::kResidency;
    for (const auto& w : words()) {
      std::string code = to_lower(w);
      for (char& c : code) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      if (code == "UK") code = "GB";
      if (code != "EU" && code != "EEA" && !is_country(code)) {
        const auto meant = find_country(w);
        throw bad_pin(
            atom, where, "names \"" + w + "\", which is no country",
            meant ? "write residency(" + *meant + ")" : "write EU, EEA or the two letters of ISO 3166, as DE");
      }
      a.words.push_back(code);
    }
  } else if (name == "city") {
    a.kind = AtomKind::kCity;
    a.words = words();
  } else if (name == "provider") {
    a.kind = AtomKind::kProvider;
    for (const auto& w : words()) a.words.push_back(provider_slug(w));
  } else if (name == "cert") {
    a.kind = AtomKind::kCert;
    const size_t ge = argument.find(">=");
    a.words = {trim(argument.substr(0, ge))};
    if (a.words[0].empty()) throw bad_pin(atom, where, "names no scheme", "write it as cert(C5>=2)");
    if (ge != std::string::npos) a.least = level_of(atom, argument.substr(ge + 2), where);
    a.text = "cert(" + a.words[0] + (a.least ? ">=" + number_text(*a.least) : "") + ")";
    return a;
  } else {
    a.kind = AtomKind::kEvidence;
    a.evidence = Evidence::kVerified;
    for (const auto& w : words()) {
      const auto e = parse_evidence(w);
      if (!e || *e == Evidence::kRecalled)
        throw bad_pin(atom, where, "names \"" + w + "\"", "evidence is listed, site or verified");
      a.evidence = std::min(a.evidence, *e);
      a.words.push_back(to_string(*e));
    }
  }
  a.text = name + "(" + join(a.words, "|") + ")";
  return a;
}

// Lower case, without the marks of common Latin letters: "Zürich" = "zurich".
std::string folded(std::string_view text) {
  static const std::pair<std::string_view, const char*> marks[] = {
      {"ä", "a"}, {"ö", "o"}, {"ü", "u"}, {"Ä", "a"}, {"Ö", "o"}, {"Ü", "u"}, {"ß", "ss"}, {"é", "e"}, {"è", "e"},
      {"ê", "e"}, {"á", "a"}, {"à", "a"}, {"â", "a"}, {"å", "a"}, {"Å", "a"}, {"ó", "o"},  {"ø", "o"}, {"Ø", "o"},
      {"í", "i"}, {"ú", "u"}, {"ñ", "n"}, {"ç", "c"}, {"ł", "l"}, {"ń", "n"}, {"ś", "s"},  {"ż", "z"}};
  std::string out;
  for (size_t i = 0; i < text.size();) {
    bool hit = false;
    for (const auto& [from, to] : marks)
      if (text.compare(i, from.size(), from) == 0) {
        out += to;
        i += from.size();
        hit = true;
        break;
      }
    if (!hit) out += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i++])));
  }
  return out;
}

std::string shown(const Json& value) {
  if (value.is_null()) return "unknown";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_array() && value.empty()) return "none";
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const auto& x : value) {
      if (x.contains("scheme"))
        parts.push_back(x["scheme"].get<std::string>() +
                        (x["level"].is_string() ? " " + x["level"].get<std::string>() : ""));
      else
        parts.push_back(x["name"].get<std::string>() + " (" +
                        (x["country"].is_string() ? x["country"].get<std::string>() : "country unknown") + ")");
    }
    return join(parts, ", ");
  }
  return value.dump();
}

class Evaluation {
 public:
  Evaluation(const Record* record, std::int64_t now) : record_(record), now_(now) {}

  void atom(const Atom& a) {
    if (!record_) return fail(a, "the region is not in the catalogue");
    switch (a.kind) {
      case AtomKind::kResidency: return residency(a);
      case AtomKind::kCity: {
        const bool ok = record_->city && std::any_of(a.words.begin(), a.words.end(), [&](const auto& w) {
                          return folded(w) == folded(*record_->city);
                        });
        return field(a, "city", ok, record_->city ? "city is " + *record_->city : "city is unknown");
      }
      case AtomKind::kProvider: {
        const bool ok = std::find(a.words.begin(), a.words.end(), record_->provider) != a.words.end();
        return field(a, "provider", ok,
                     record_->provider.empty() ? "provider is unknown" : "provider is " + record_->provider);
      }
      case AtomKind::kSovereign: return sovereign(a);
      case AtomKind::kCert: return cert(a);
      case AtomKind::kSeal: {
        const bool ok = record_->seal_level && *record_->seal_level >= *a.least;
        return field(
            a, "seal_level", ok,
            record_->seal_level ? "seal_level is " + std::to_string(*record_->seal_level) : "seal_level is unknown");
      }
      case AtomKind::kEvidence: return;  // judged last, over the fields the others rest on
    }
  }

  void evidence(const Atom& a) {
    if (!record_) return fail(a, "the region is not in the catalogue");
    if (out_.fields.empty()) field(a, "country", record_->country.has_value(), "country is unknown");
    const auto used = out_.fields;
    for (const auto& f : used) {
      if (f.evidence >= a.evidence) continue;
      FieldCheck again = f;
      again.ok = false;
      again.rule = a.text;
      out_.fields.push_back(again);
      fail(a, f.name + " is only " + to_string(f.evidence) + (f.evidence == Evidence::kNone ? " (unknown)" : ""));
    }
  }

  PinResult take() {
    for (const auto& f : out_.fields) out_.weakest = std::min(out_.weakest, f.evidence);
    return std::move(out_);
  }

 private:
  void fail(const Atom& a, const std::string& reason) {
    out_.passes = false;
    if (out_.rule.empty()) out_.rule = a.text, out_.reason = reason;
  }

  void field(const Atom& a, const std::string& name, bool ok, const std::string& reason) {
    FieldCheck f;
    f.name = name;
    f.value = shown(field_value(*record_, name));
    f.ok = ok;
    FieldEvidence e = record_->evidence_of(name);
    // Flags that follow from the country rest on what the country rests on; the seller's name is in its own feed.
    if (e.evidence == Evidence::kNone && (name == "in_eu" || name == "in_eea")) e = record_->evidence_of("country");
    if (name == "provider" && !record_->provider.empty()) e = {Evidence::kListed, record_->checked_at.value_or(""), ""};
    f.evidence = e.evidence;
    f.as_of = e.as_of;
    f.rule = a.text;
    out_.fields.push_back(std::move(f));
    if (!ok) fail(a, reason);
  }

  void residency(const Atom& a) {
    bool ok = false;
    for (const auto& w : a.words) {
      if (record_->country)
        ok |= w == "EU" ? in_eu(*record_->country) : w == "EEA" ? in_eea(*record_->country) : w == *record_->country;
      else ok |= (w == "EU" && record_->in_eu.value_or(false)) || (w == "EEA" && record_->in_eea.value_or(false));
    }
    if (record_->country || !ok)
      return field(a, "country", ok, record_->country ? "country is " + *record_->country : "country is unknown");
    field(a, record_->in_eu.value_or(false) ? "in_eu" : "in_eea", ok, "");
  }

  void sovereign(const Atom& a) {
    const auto& r = *record_;
    const auto law = [&](const char* name, const std::optional<std::string>& country, const char* what) {
      field(a, name, country && under_european_law(*country),
            country ? std::string(what) + " is " + *country + ", outside EU, EEA and CH"
                    : std::string(name) + " is unknown");
    };
    law("country", r.country, "country");
    law("operator_country", r.operator_country, "operator_country");
    bool ok = r.parent_chain.has_value();
    std::string why = "parent_chain is unknown";
    if (r.parent_chain)
      for (const auto& p : *r.parent_chain)
        if (!p.country || !under_european_law(*p.country)) {
          if (ok)
            why = "parent " + p.name + (p.country ? " is under the law of " + *p.country : " is under an unknown law");
          ok = false;
        }
    field(a, "parent_chain", ok, why);
    field(a, "us_affiliate", r.us_affiliate == false,
          r.us_affiliate ? "an affiliate is under US law" : "us_affiliate is unknown");
  }

  void cert(const Atom& a) {
    const auto& r = *record_;
    bool ok = false;
    std::string why = r.certifications ? "no certificate " + a.words[0] : "certifications are unknown";
    for (const auto& c : r.certifications.value_or(std::vector<Certification>{})) {
      if (to_lower(c.scheme) != to_lower(a.words[0])) continue;
      const auto end = c.valid_to ? parse_time(*c.valid_to) : std::nullopt;
      if (now_ && end && *end + 86400 <= now_) why = c.scheme + " ended on " + *c.valid_to;
      else if (a.least && !c.level_number()) why = c.scheme + " has no known level";
      else if (a.least && *c.level_number() < *a.least) why = c.scheme + " is of level " + *c.level;
      else ok = true;
    }
    field(a, "certifications", ok, why);
  }

  const Record* record_;
  std::int64_t now_;
  PinResult out_;
};

}  // namespace

std::vector<Atom> parse_pins(std::string_view text, const std::string& where) {
  std::vector<Atom> out;
  std::string part;
  const auto flush = [&] {
    const std::string t = trim(part);
    part.clear();
    if (t.empty()) return;
    const std::vector<std::string> expanded = to_lower(t) == "eu-sovereign"
                                                  ? std::vector<std::string>{"residency(EU|EEA|CH)", "sovereign"}
                                                  : std::vector<std::string>{t};
    for (const auto& e : expanded) {
      Atom a = parse_atom(e, where);
      if (std::none_of(out.begin(), out.end(), [&](const Atom& o) { return o.text == a.text; }))
        out.push_back(std::move(a));
    }
  };
  int depth = 0;  // what stands in brackets is a name: city(Brighton and Hove)
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    const bool word = to_lower(text.substr(i, 5)) == " and ";
    if (depth > 0 || !(word || text[i] == '&' || text[i] == ';')) {
      part += text[i];
      continue;
    }
    flush();
    if (word) i += 4;
  }
  const bool blank = out.empty() && trim(part).empty();
  if (blank) throw Error("bad_pin", where, "the pin is empty", std::string("known pins: ") + kKnown);
  flush();
  return out;
}

std::vector<Atom> parse_pins(const std::vector<std::string>& texts, const std::string& where) {
  std::vector<Atom> out;
  for (size_t i = 0; i < texts.size(); ++i)
    for (auto& a : parse_pins(texts[i], where + "/" + std::to_string(i)))
      if (std::none_of(out.begin(), out.end(), [&](const Atom& o) { return o.text == a.text; }))
        out.push_back(std::move(a));
  return out;
}

PinResult evaluate(const std::vector<Atom>& pins, const Record* record, std::int64_t now) {
  Evaluation e(record, now);
  for (const auto& a : pins) e.atom(a);
  for (const auto& a : pins)
    if (a.kind == AtomKind::kEvidence) e.evidence(a);
  return e.take();
}

PinResult check_location(std::string_view place, const std::vector<Atom>& pins, const Catalogue& catalogue,
                         const std::string& where, std::int64_t now) {
  PinResult result;
  const std::string name = trim(place);
  if (const Record* r = catalogue.find(name)) {
    result = evaluate(pins, r, now);
  } else if (const auto country = name.find('/') == std::string::npos ? find_country(name) : std::nullopt) {
    Record bare;
    bare.id = *country;
    bare.country = *country;
    bare.evidence["country"] = {Evidence::kListed, "", ""};
    result = evaluate(pins, &bare, now);
    if (!result.passes && result.rule.compare(0, 10, "residency(") != 0)
      result.reason += "; name a region (as verda/FIN-03) instead of a country";
  } else {
    result = evaluate(pins, nullptr, now);
    if (!result.passes) result.reason = "\"" + name + "\" is neither a country nor a region of the catalogue";
  }
  if (!result.passes && !where.empty()) result.reason = where + " (" + name + "): " + result.reason;
  return result;
}

nlohmann::ordered_json to_json(const PinResult& result) {
  nlohmann::ordered_json j{{"passes", result.passes}};
  auto& fields = j["fields"] = nlohmann::ordered_json::array();
  for (const auto& f : result.fields)
    fields.push_back({{"name", f.name},
                      {"value", f.value == "unknown" ? nlohmann::ordered_json() : nlohmann::ordered_json(f.value)},
                      {"ok", f.ok},
                      {"evidence", f.evidence == Evidence::kNone ? nlohmann::ordered_json()
                                                                 : nlohmann::ordered_json(to_string(f.evidence))},
                      {"as_of", f.as_of.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(f.as_of)},
                      {"rule", f.rule}});
  if (!result.passes) j["rule"] = result.rule, j["reason"] = result.reason;
  j["weakest"] =
      result.weakest == Evidence::kNone ? nlohmann::ordered_json() : nlohmann::ordered_json(to_string(result.weakest));
  return j;
}

}  // namespace shardfit::regions
