// What the data are, by their bytes: two runs over the same text have the same hash, whatever the files are called.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace shardfit::data {

// XXH64 of the files' bytes, in order, and of how long each is. Hashes are remembered in `memo` (a JSON file, "" =
// none) by path, size and times, so that a file that did not change is not read again. `alive` is called now and then.
std::string content_hash(const std::vector<std::filesystem::path>& files, const std::filesystem::path& memo,
                         const std::function<void()>& alive);

}  // namespace shardfit::data
