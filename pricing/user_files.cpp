#include "pricing/user_files.hpp"

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"

namespace shardfit::pricing {

std::optional<std::string> user_file(const std::filesystem::path& path, std::size_t limit) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec) || ec) return std::nullopt;
  const auto size = std::filesystem::file_size(path, ec);
  if (ec || size > limit) return std::nullopt;
  try {
    return read_file(path, limit);
  } catch (const Error&) {
    return std::nullopt;
  }
}

Json user_json(const std::filesystem::path& path) {
  const auto text = user_file(path, std::size_t{64} << 20);
  if (!text) return nullptr;
  Json j = Json::parse(*text, nullptr, false, true);
  return j.is_discarded() ? Json(nullptr) : j;
}

const Json* at(const Json& j, std::initializer_list<const char*> path) {
  const Json* p = &j;
  for (const char* key : path) {
    if (!p->is_object()) return nullptr;
    const auto it = p->find(key);
    if (it == p->end()) return nullptr;
    p = &*it;
  }
  return p;
}
std::optional<double> number_at(const Json& j, std::initializer_list<const char*> path) {
  const Json* v = at(j, path);
  return v && v->is_number() ? std::optional(v->get<double>()) : std::nullopt;
}
std::string text_at(const Json& j, std::initializer_list<const char*> path) {
  const Json* v = at(j, path);
  return v && v->is_string() ? v->get<std::string>() : "";
}

}  // namespace shardfit::pricing
