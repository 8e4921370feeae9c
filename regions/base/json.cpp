#include "regions/base/json.hpp"

#include <algorithm>
#include <cmath>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/text.hpp"

namespace shardfit {

Json parse_json(std::string_view text, const std::string& file) {
  // Deep nesting would overflow the stack of recursive readers: refuse it before it is built.
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      else if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > 200) {
        Error e("bad_json", "", "JSON is nested deeper than 200 levels", "correct the brackets");
        e.in_file(file);
        throw e;
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  try {
    return Json::parse(text, nullptr, true, true);
  } catch (const Json::parse_error& x) {
    const auto at = std::min<size_t>(x.byte ? x.byte - 1 : 0, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    const size_t start = at ? text.rfind('\n', at - 1) : std::string_view::npos;
    const size_t column = start == std::string_view::npos ? at + 1 : at - start;
    std::string why = x.what();
    if (const size_t colon = why.find(": "); colon != std::string::npos) {
      why = why.substr(colon + 2);
      if (const size_t next = why.find("syntax error"); next != std::string::npos) why = why.substr(next);
    }
    Error e("bad_json", "line " + std::to_string(line) + ", column " + std::to_string(column), why,
            "correct the JSON there");
    e.in_file(file);
    throw e;
  } catch (const Json::exception& x) {  // a number beyond what a double holds
    std::string why = x.what();
    if (const size_t close = why.find("] "); close != std::string::npos) why = why.substr(close + 2);
    Error e("bad_json", "", why, "correct the JSON");
    e.in_file(file);
    throw e;
  }
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path, std::size_t{256} << 20), path.string());
}

std::string brief(const Json& value) {
  std::string s = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (s.size() > 60) s = s.substr(0, 57) + "...";
  return s;
}

ObjectReader::ObjectReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object())
    throw Error("wrong_type", where_, "an object is needed, not " + brief(object), "write {\"key\": value, ...}");
}

const Json* ObjectReader::get(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ObjectReader::is_null(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it != object_.end() && it->is_null();
}

Error ObjectReader::wrong_type(std::string_view key, const Json& value, const char* wanted) const {
  const std::string_view w = wanted;
  const char* remedy = w == "a string"            ? "put it in quotes"
                       : w == "a list of strings" ? "write [\"...\", \"...\"]"
                       : w == "true or false"     ? "write true or false, without quotes"
                       : w == "a whole number"    ? "write a whole number, e.g. 16"
                                                  : "write a number, e.g. 0.1";
  return {"wrong_type", at(key), std::string(wanted) + " is needed, not " + brief(value), remedy};
}

std::optional<std::string> ObjectReader::string(std::string_view key) {
  const Json* v = get(key);
  if (!v) return std::nullopt;
  if (!v->is_string()) throw wrong_type(key, *v, "a string");
  return v->get<std::string>();
}

std::optional<bool> ObjectReader::boolean(std::string_view key) {
  const Json* v = get(key);
  if (!v) return std::nullopt;
  if (!v->is_boolean()) throw wrong_type(key, *v, "true or false");
  return v->get<bool>();
}

std::optional<double> ObjectReader::number(std::string_view key, double least, double most) {
  const Json* v = get(key);
  if (!v) return std::nullopt;
  if (!v->is_number()) throw wrong_type(key, *v, "a number");
  const double x = v->get<double>();
  if (!std::isfinite(x)) throw wrong_type(key, *v, "a finite number");
  if (x < least || x > most) {
    const std::string limit = x < least ? "at least " + Json(least).dump() : "at most " + Json(most).dump();
    throw Error("out_of_range", at(key), brief(*v) + " is out of range", "it must be " + limit);
  }
  return x;
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key, std::int64_t least, std::int64_t most) {
  const Json* v = get(key);
  if (!v) return std::nullopt;
  if (!v->is_number()) throw wrong_type(key, *v, "a whole number");
  const double x = v->get<double>();
  const bool whole = v->is_number_integer() || (std::isfinite(x) && std::floor(x) == x);
  if (!whole) throw wrong_type(key, *v, "a whole number");
  if (x < static_cast<double>(least) || x > static_cast<double>(most) || x > 9.0e18) {
    const std::string limit =
        x < static_cast<double>(least) ? "at least " + std::to_string(least) : "at most " + std::to_string(most);
    throw Error("out_of_range", at(key), brief(*v) + " is out of range", "it must be " + limit);
  }
  return v->is_number_integer() ? v->get<std::int64_t>() : static_cast<std::int64_t>(x);
}

std::optional<std::string> ObjectReader::one_of(std::string_view key, const std::vector<std::string>& words) {
  const auto v = string(key);
  if (v && std::find(words.begin(), words.end(), *v) == words.end()) {
    const auto near = nearest(*v, words);
    throw Error("unknown_word", at(key), "\"" + *v + "\" is not known here",
                (near ? "did you mean \"" + *near + "\"? " : std::string()) + "Known: " + join(words, ", "));
  }
  return v;
}

std::optional<std::vector<std::string>> ObjectReader::strings(std::string_view key) {
  const Json* v = get(key);
  if (!v) return std::nullopt;
  if (v->is_string()) return std::vector{v->get<std::string>()};
  if (!v->is_array()) throw wrong_type(key, *v, "a list of strings");
  std::vector<std::string> out;
  for (const auto& x : *v) {
    if (!x.is_string()) throw wrong_type(std::string(key) + "/" + std::to_string(out.size()), x, "a string");
    out.push_back(x.get<std::string>());
  }
  return out;
}

const Json& ObjectReader::required(std::string_view key) {
  const Json* v = get(key);
  if (!v) throw Error("missing_key", at(key), "is missing", "add \"" + std::string(key) + "\"");
  return *v;
}
std::string ObjectReader::required_string(std::string_view key) {
  required(key);
  return *string(key);
}
double ObjectReader::required_number(std::string_view key, double least, double most) {
  required(key);
  return *number(key, least, most);
}
std::int64_t ObjectReader::required_integer(std::string_view key, std::int64_t least, std::int64_t most) {
  required(key);
  return *integer(key, least, most);
}

std::vector<std::string> ObjectReader::unknown() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : object_.items())
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) out.push_back(key);
  return out;
}

void ObjectReader::finish() const {
  const auto extra = unknown();
  if (extra.empty()) return;
  const auto near = nearest(extra.front(), known_);
  throw Error("unknown_key", at(extra.front()), "unknown key \"" + extra.front() + "\"",
              near ? "did you mean \"" + *near + "\"?" : "known keys: " + join(known_, ", "));
}

}  // namespace shardfit
