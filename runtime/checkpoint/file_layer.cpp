#include "runtime/checkpoint/file_layer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "regions/base/error.hpp"

namespace shardfit::checkpoint {
namespace {

[[noreturn]] void failed(const char* what, const std::filesystem::path& path, int reason) {
  throw Error("storage_failed", "", std::string("cannot ") + what + ": " + std::strerror(reason),
              "see that the folder is writable and has room", kExitStorage)
      .in_file(path.string());
}

class RealFile : public OutputFile {
 public:
  explicit RealFile(const std::filesystem::path& path) : path_(path) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) failed("create the file", path, errno);
  }
  ~RealFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  RealFile(const RealFile&) = delete;
  RealFile& operator=(const RealFile&) = delete;

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) failed("write to the file", path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }
  void sync() override {
    if (::fsync(descriptor_) != 0) failed("fsync the file", path_, errno);
  }
  void close() override {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) failed("close the file", path_, errno);
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

class RealFiles : public FileLayer {
 public:
  std::unique_ptr<OutputFile> create(const std::filesystem::path& path) override {
    return std::make_unique<RealFile>(path);
  }
  void make_folder(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) failed("make the folder", path, error.value());
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) failed("rename to this name", to, errno);
  }
  void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) override {
    std::error_code ignored;
    if (!std::filesystem::exists(to, ignored)) return rename(from, to);
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) failed("put the new folder in place of", to, errno);
    const std::filesystem::path aside = from.string() + "-old";  // a file system without the exchange: two steps
    rename(to, aside);
    rename(from, to);
    rename(aside, from);
  }
  void sync_folder(const std::filesystem::path& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) failed("open the folder", path, errno);
    const int result = ::fsync(descriptor);
    const int reason = errno;
    ::close(descriptor);
    // Some network file systems cannot fsync a folder; there a rename is durable by itself.
    if (result != 0 && reason != EINVAL && reason != ENOTSUP) failed("fsync the folder", path, reason);
  }
  void remove_all(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) failed("remove", path, error.value());
  }
};

}  // namespace

FileLayer& real_files() {
  static RealFiles instance;
  return instance;
}

void write_file(FileLayer& files, const std::filesystem::path& path, std::string_view bytes) {
  const auto file = files.create(path);
  file->write(std::as_bytes(std::span(bytes.data(), bytes.size())));
  file->sync();
  file->close();
}

}  // namespace shardfit::checkpoint
