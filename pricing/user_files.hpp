// Files that belong to users, read by the ledger: only regular files of sensible size, and whatever is wrong with them
// makes a value absent. Nothing here throws but std::bad_alloc.
#pragma once
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>

#include "regions/base/json.hpp"

namespace shardfit::pricing {

std::optional<std::string> user_file(const std::filesystem::path& path, std::size_t limit);
Json user_json(const std::filesystem::path& path);  // null where it cannot be read

// The value at the end of a path of keys; none where it is absent or of another type ("" for text).
std::optional<double> number_at(const Json& j, std::initializer_list<const char*> path);
std::string text_at(const Json& j, std::initializer_list<const char*> path);
const Json* at(const Json& j, std::initializer_list<const char*> path);

}  // namespace shardfit::pricing
