#include "runtime/data/cache_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "regions/base/error.hpp"

namespace shardfit::data {

CacheLock::CacheLock(const std::filesystem::path& folder, double wait_seconds) {
  using Clock = std::chrono::steady_clock;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path file = folder / "lock";
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    throw Error("storage_failed", "", std::string("cannot create: ") + std::strerror(errno),
                "see that the output folder is writable", 13)
        .in_file(file.string());
  timespec last{};
  auto since = Clock::now();
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      throw Error("storage_failed", "", std::string("cannot lock: ") + std::strerror(errno), "", 13)
          .in_file(file.string());
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 &&
        (status.st_mtim.tv_sec != last.tv_sec || status.st_mtim.tv_nsec != last.tv_nsec)) {
      last = status.st_mtim;
      since = Clock::now();
    }
    if (std::chrono::duration<double>(Clock::now() - since).count() > wait_seconds) {
      ::close(descriptor_);
      throw Error("timeout", "", "the process that prepares the tokens has made no progress",
                  "see what holds this file (lslocks), or raise SHARDFIT_TIMEOUT", kExitFailed)
          .in_file(file.string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

CacheLock::~CacheLock() { ::close(descriptor_); }

void CacheLock::alive() const { ::futimens(descriptor_, nullptr); }

}  // namespace shardfit::data
