#include "runtime/data/token_store.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::data {
namespace {

Error damaged(const std::string& name, const std::string& what) {
  return Error("cache_damaged", "", "token cache " + what, "remove the file, it is made again").in_file(name);
}

void read_exactly(int descriptor, const std::string& name, std::int64_t at, std::span<char> out) {
  while (!out.empty()) {
    const ssize_t done = ::pread(descriptor, out.data(), out.size(), at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0)
      throw Error("file_unreadable", "", std::string("cannot read tokens: ") + std::strerror(errno), "", kExitFailed)
          .in_file(name);
    if (done == 0) throw damaged(name, "ends too early");
    at += done;
    out = out.subspan(static_cast<std::size_t>(done));
  }
}

StoreDescription description_of(const Json& json) {
  StoreDescription d;
  d.key = json.at("key").get<std::string>();
  d.content_hash = json.at("content_hash").get<std::string>();
  d.tokens = json.at("tokens").get<std::int64_t>();
  d.documents = json.at("documents").get<std::int64_t>();
  d.labels_offset = json.at("labels_offset").get<std::int64_t>();
  d.documents_offset = json.at("documents_offset").get<std::int64_t>();
  d.warnings = json.at("warnings").get<std::vector<std::string>>();
  for (const auto& s : json.at("segments"))
    d.segments.push_back({s.at("file").get<std::string>(), s.at("offset").get<std::int64_t>(), s.at("width").get<int>(),
                          s.at("tokens").get<std::int64_t>()});
  return d;
}

}  // namespace

TokenStore::TokenStore(const std::filesystem::path& path)
    : name_(path.string()), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw damaged(name_, "cannot be opened");
  open();
}
TokenStore::TokenStore(int descriptor) : name_("(temporary)"), descriptor_(descriptor) { open(); }

TokenStore::~TokenStore() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
  for (const int descriptor : segment_descriptors_)
    if (descriptor >= 0 && descriptor != descriptor_) ::close(descriptor);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void TokenStore::open() {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || status.st_size < 16) throw damaged(name_, "is too short");
  std::vector<char> tail(16);
  read_exactly(descriptor_, name_, status.st_size - 16, tail);
  std::uint64_t length;
  std::memcpy(&length, tail.data(), 8);
  if (std::memcmp(tail.data() + 8, "SHFTOK02", 8) != 0 || length > static_cast<std::uint64_t>(status.st_size - 16))
    throw damaged(name_, "has no valid end");
  std::vector<char> text(length);
  read_exactly(descriptor_, name_, status.st_size - 16 - static_cast<std::int64_t>(length), text);
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  try {
    description_ = description_of(json);
  } catch (const Json::exception&) {
    throw damaged(name_, "has a description that cannot be read");
  }
  std::int64_t tokens = 0;
  for (const Segment& segment : description_.segments) {
    segment_begins_.push_back(tokens);
    tokens += segment.tokens;
    const int descriptor = segment.file.empty() ? descriptor_ : ::open(segment.file.c_str(), O_RDONLY | O_CLOEXEC);
    segment_descriptors_.push_back(descriptor);
    if (descriptor < 0)
      throw Error("file_unreadable", "", std::string("cannot open: ") + std::strerror(errno)).in_file(segment.file);
  }
  const std::int64_t starts_bytes = description_.documents * 8;
  if (tokens != description_.tokens || description_.documents < 0 || description_.documents > status.st_size / 8 ||
      description_.documents_offset < 0 || description_.documents_offset % 8 != 0 ||
      description_.documents_offset + starts_bytes > status.st_size)
    throw damaged(name_, "contradicts itself");
  if (starts_bytes > 0) {
    mapped_bytes_ = static_cast<std::size_t>(description_.documents_offset + starts_bytes);
    mapping_ = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (mapping_ == MAP_FAILED) {
      mapping_ = nullptr;
      throw damaged(name_, std::string("cannot be mapped: ") + std::strerror(errno));
    }
    starts_ =
        reinterpret_cast<const std::uint64_t*>(static_cast<const char*>(mapping_) + description_.documents_offset);
  }
}

std::int64_t TokenStore::document_end(std::int64_t document) const {
  return document + 1 < description_.documents ? document_start(document + 1) : description_.tokens;
}

std::int64_t TokenStore::document_after(std::int64_t at) const {
  return std::upper_bound(starts_, starts_ + description_.documents, static_cast<std::uint64_t>(at)) - starts_;
}

void TokenStore::read_tokens(std::int64_t first, std::span<std::int32_t> out) const {
  std::vector<char> bytes;
  auto segment = static_cast<std::size_t>(std::upper_bound(segment_begins_.begin(), segment_begins_.end(), first) -
                                          segment_begins_.begin());
  for (--segment; !out.empty(); ++segment) {
    const Segment& from = description_.segments.at(segment);
    const std::int64_t within = first - segment_begins_[segment];
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(from.tokens - within, static_cast<std::int64_t>(out.size())));
    bytes.resize(count * static_cast<std::size_t>(from.width));
    read_exactly(segment_descriptors_[segment], from.file.empty() ? name_ : from.file,
                 from.offset + within * from.width, bytes);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t value = 0;
      std::memcpy(&value, bytes.data() + i * static_cast<std::size_t>(from.width),
                  static_cast<std::size_t>(from.width));  // little-endian
      out[i] = static_cast<std::int32_t>(value);
    }
    first += static_cast<std::int64_t>(count);
    out = out.subspan(count);
  }
}

void TokenStore::read_labels(std::int64_t first, std::span<std::int32_t> out,
                             std::span<const std::int32_t> tokens) const {
  if (description_.labels_offset < 0) {
    std::copy(tokens.begin(), tokens.end(), out.begin());
    return;
  }
  read_exactly(descriptor_, name_, description_.labels_offset + first * 4,
               {reinterpret_cast<char*>(out.data()), out.size_bytes()});
  for (std::size_t i = 0; i < out.size(); ++i)
    if (out[i] == kLabelIsToken) out[i] = tokens[i];
}

}  // namespace shardfit::data
