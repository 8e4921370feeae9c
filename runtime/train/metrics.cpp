#include "runtime/train/metrics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "regions/base/error.hpp"
#include "runtime/checkpoint/file_layer.hpp"

namespace shardfit::train {
namespace {

Error failed(const std::string& path) {
  return {"storage_failed", "", fmt::format("cannot write {}: {}", path, std::strerror(errno)),
          "free space or choose another output folder", checkpoint::kExitStorage};
}

}  // namespace

Metrics::Metrics(const std::filesystem::path& file) : path_(file.string()) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw failed(path_);
  // A line that a killed run or a full disk left unfinished says nothing: it is cut off, so that every line of the file
  // can be read.
  const auto size = ::lseek(descriptor_, 0, SEEK_END);
  auto end = size;
  for (char last = 0; end > 0 && ::pread(descriptor_, &last, 1, end - 1) == 1 && last != '\n';) --end;
  if (end < size && ::ftruncate(descriptor_, end) != 0) throw failed(path_);
}

Metrics::Metrics(Metrics&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
Metrics& Metrics::operator=(Metrics&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}
Metrics::~Metrics() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Metrics::line(const nlohmann::ordered_json& object) {
  if (descriptor_ < 0) return;
  const auto text = object.dump() + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const auto wrote = ::write(descriptor_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) throw failed(path_);
    done += static_cast<std::size_t>(wrote);
  }
}

nlohmann::ordered_json number_or_null(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

}  // namespace shardfit::train
