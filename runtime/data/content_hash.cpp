#include "runtime/data/content_hash.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "runtime/checkpoint/xxh64.hpp"

namespace shardfit::data {
namespace {

std::string hash_file(const std::filesystem::path& path, const std::function<void()>& alive) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw Error("file_unreadable", "", "cannot be opened").in_file(path.string());
  checkpoint::Xxh64 hash;
  std::vector<char> piece(std::size_t{4} << 20);
  while (stream) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.update(std::as_bytes(std::span(piece.data(), static_cast<std::size_t>(stream.gcount()))));
    alive();
  }
  if (stream.bad())
    throw Error("file_unreadable", "", "cannot be read to its end", "", kExitFailed).in_file(path.string());
  return hash.hex();
}

// Size, times and place of a file: what changes when its bytes do.
std::string stamp(const struct stat& s) {
  return fmt::format("{} {}.{:09} {}.{:09} {} {}", s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec,
                     s.st_ctim.tv_nsec, s.st_dev, s.st_ino);
}

}  // namespace

std::string content_hash(const std::vector<std::filesystem::path>& files, const std::filesystem::path& memo,
                         const std::function<void()>& alive) {
  Json known = Json::object();
  if (!memo.empty() && std::filesystem::exists(memo)) known = Json::parse(read_file(memo), nullptr, false);
  if (!known.is_object()) known = Json::object();
  bool changed = false;
  checkpoint::Xxh64 whole;
  for (const auto& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0)
      throw Error("file_missing", "", "there is no such file of data").in_file(file.string());
    const std::string name = std::filesystem::absolute(file).string(), mark = stamp(status);
    std::string hash;
    if (const auto found = known.find(name); found != known.end() && found->is_array() && found->size() == 2 &&
                                             found->at(0) == mark && found->at(1).is_string()) {
      hash = found->at(1).get<std::string>();
    } else {
      hash = hash_file(file, alive);
      known[name] = Json::array({mark, hash});
      changed = true;
    }
    const std::string part = fmt::format("{} {}\n", hash, status.st_size);
    whole.update(std::as_bytes(std::span(part)));
  }
  if (changed && !memo.empty()) write_file_atomic(memo, known.dump(-1, ' ', false, Json::error_handler_t::replace));
  return whole.hex();
}

}  // namespace shardfit::data
