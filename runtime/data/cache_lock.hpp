// One rank makes a token cache while the others wait for it.
#pragma once
#include <filesystem>

namespace shardfit::data {

class CacheLock {
 public:
  // Waits for the lock of `folder`; throws Error{timeout} once its holder has shown no sign of life for `wait_seconds`.
  CacheLock(const std::filesystem::path& folder, double wait_seconds);
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;
  ~CacheLock();
  void alive() const;  // a sign of life

 private:
  int descriptor_ = -1;
};

}  // namespace shardfit::data
