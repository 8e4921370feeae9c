#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "runtime/data/token_store.hpp"

namespace shardfit::data {
namespace {

constexpr std::size_t kBuffer = std::size_t{4} << 20;

[[noreturn]] void failed(const std::filesystem::path& path, const char* what) {
  throw Error("storage_failed", "", std::string(what) + ": " + std::strerror(errno),
              "see that the output folder is writable and has room", 13)
      .in_file(path.string());
}

void write_all(int descriptor, const char* bytes, std::size_t count, const std::filesystem::path& path) {
  while (count > 0) {
    const ssize_t done = ::write(descriptor, bytes, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) failed(path, "cannot write tokens");
    bytes += done;
    count -= static_cast<std::size_t>(done);
  }
}

}  // namespace

StoreWriter::StoreWriter(const std::filesystem::path& part, int width) : part_(part), width_(width) {
  descriptor_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) failed(part_, "cannot create");
}

StoreWriter::~StoreWriter() {
  if (labels_ >= 0) ::close(labels_);
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(part_.c_str());
  }
}

void StoreWriter::write(const void* bytes, std::size_t count) {
  const char* from = static_cast<const char*>(bytes);
  buffer_.insert(buffer_.end(), from, from + count);
  own_bytes_ += static_cast<std::int64_t>(count);
  if (buffer_.size() >= kBuffer) flush();
}

void StoreWriter::flush() {
  write_all(descriptor_, buffer_.data(), buffer_.size(), part_);
  buffer_.clear();
}

void StoreWriter::begin_document() { starts_.push_back(static_cast<std::uint64_t>(tokens_)); }
void StoreWriter::begin_document_at(std::int64_t token) { starts_.push_back(static_cast<std::uint64_t>(token)); }

void StoreWriter::append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) {
  if (ids.empty()) return;
  if (!labels.empty() && labels_ < 0) {
    const std::string name = part_.string() + ".labels";
    labels_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (labels_ < 0) failed(name, "cannot create");
    ::unlink(name.c_str());
  }
  if (labels_ >= 0) {
    const std::vector<std::int32_t> same(
        std::min<std::size_t>(
            1 << 16, static_cast<std::size_t>(std::max(tokens_ - labelled_, static_cast<std::int64_t>(ids.size())))),
        kLabelIsToken);
    const auto pad = [&](std::int64_t to) {  // documents without labels so far
      while (labelled_ < to) {
        const auto count = std::min<std::int64_t>(to - labelled_, static_cast<std::int64_t>(same.size()));
        write_all(labels_, reinterpret_cast<const char*>(same.data()), static_cast<std::size_t>(count) * 4, part_);
        labelled_ += count;
      }
    };
    pad(tokens_);
    if (labels.empty()) {
      pad(tokens_ + static_cast<std::int64_t>(ids.size()));
    } else {
      write_all(labels_, reinterpret_cast<const char*>(labels.data()), labels.size_bytes(), part_);
      labelled_ += static_cast<std::int64_t>(labels.size());
    }
  }
  if (segments_.empty() || !segments_.back().file.empty()) segments_.push_back({"", own_bytes_, width_, 0});
  segments_.back().tokens += static_cast<std::int64_t>(ids.size());
  tokens_ += static_cast<std::int64_t>(ids.size());
  if (width_ == 4) return write(ids.data(), ids.size_bytes());
  std::array<std::uint16_t, 1024> narrow;
  while (!ids.empty()) {
    const std::size_t count = std::min(ids.size(), narrow.size());
    for (std::size_t i = 0; i < count; ++i) narrow[i] = static_cast<std::uint16_t>(ids[i]);
    write(narrow.data(), count * 2);
    ids = ids.subspan(count);
  }
}

void StoreWriter::append_segment(Segment segment) {
  tokens_ += segment.tokens;
  segments_.push_back(std::move(segment));
}

int StoreWriter::finish(const std::filesystem::path& path, StoreDescription description) {
  const std::array<char, 8> zeros{};
  write(zeros.data(), static_cast<std::size_t>((8 - own_bytes_ % 8) % 8));
  if (labels_ >= 0) {
    const std::vector<std::int32_t> same(static_cast<std::size_t>(tokens_ - labelled_), kLabelIsToken);
    write_all(labels_, reinterpret_cast<const char*>(same.data()), same.size() * 4, part_);
    description.labels_offset = own_bytes_;
    std::vector<char> piece(kBuffer);
    if (::lseek(labels_, 0, SEEK_SET) < 0) failed(part_, "cannot read labels back");
    for (;;) {
      const ssize_t count = ::read(labels_, piece.data(), piece.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) failed(part_, "cannot read labels back");
      if (count == 0) break;
      write(piece.data(), static_cast<std::size_t>(count));
    }
    write(zeros.data(), static_cast<std::size_t>((8 - own_bytes_ % 8) % 8));
  }
  description.documents_offset = own_bytes_;
  write(starts_.data(), starts_.size() * 8);
  OrderedJson json{{"key", description.key},
                   {"content_hash", description.content_hash},
                   {"tokens", tokens_},
                   {"documents", starts_.size()},
                   {"labels_offset", description.labels_offset},
                   {"documents_offset", description.documents_offset},
                   {"warnings", description.warnings}};
  json["segments"] = OrderedJson::array();
  for (const Segment& s : segments_)
    json["segments"].push_back({{"file", s.file}, {"offset", s.offset}, {"width", s.width}, {"tokens", s.tokens}});
  const std::string text = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  const std::uint64_t length = text.size();
  write(text.data(), text.size());
  write(&length, 8);
  write("SHFTOK02", 8);
  flush();
  if (path.empty()) {
    ::unlink(part_.c_str());
    return std::exchange(descriptor_, -1);
  }
  if (::fsync(descriptor_) != 0) failed(part_, "cannot fsync");
  if (::rename(part_.c_str(), path.c_str()) != 0) failed(path, "cannot rename to this name");
  ::close(std::exchange(descriptor_, -1));
  return -1;
}

}  // namespace shardfit::data
