// A file layer that stops the world before its n-th operation and then forgets, as a machine that loses power does,
// what was not fsynced.
#pragma once
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "runtime/checkpoint/file_layer.hpp"

namespace shardfit::checkpoint {

struct Crash : std::runtime_error {
  Crash() : std::runtime_error("crash") {}
};

class CrashFiles : public FileLayer {
 public:
  // `before`: the operation (counted from 0) that is never done; -1 = none.
  explicit CrashFiles(int before) : before_(before) {}
  int operations() const { return count_; }

  std::unique_ptr<OutputFile> create(const std::filesystem::path& path) override {
    step();
    unsynced_.insert(path.string());
    return std::make_unique<File>(*this, path, real_files().create(path));
  }
  void make_folder(const std::filesystem::path& path) override { step(), real_files().make_folder(path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    step();
    real_files().rename(from, to);
    moved(from, to);
    renames_.push_back({from, to, false});
  }
  void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) override {
    step();
    const bool exchange = std::filesystem::exists(to);
    real_files().replace_folder(from, to);
    if (!exchange) moved(from, to);
    renames_.push_back({from, to, exchange});
  }
  void sync_folder(const std::filesystem::path& path) override {
    step();
    real_files().sync_folder(path);
    std::erase_if(renames_, [&](const Rename& r) { return r.to.parent_path() == path; });
  }
  void remove_all(const std::filesystem::path& path) override { step(), real_files().remove_all(path); }

  // What a reader finds after the power is back: files that were not fsynced have lost their second half, and, if
  // `renames_too`, renames whose folder was not fsynced did not happen.
  void lose_what_was_not_synced(bool renames_too) {
    if (renames_too)
      for (auto r = renames_.rbegin(); r != renames_.rend(); ++r) {
        real_files().replace_folder(r->to, r->from);
        if (!r->exchange) moved(r->to, r->from);
      }
    for (const std::string& path : unsynced_)
      if (std::filesystem::exists(path)) std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  }

 private:
  struct Rename {
    std::filesystem::path from, to;
    bool exchange;
  };
  class File : public OutputFile {
   public:
    File(CrashFiles& files, std::filesystem::path path, std::unique_ptr<OutputFile> real)
        : files_(files), path_(std::move(path)), real_(std::move(real)) {}
    void write(std::span<const std::byte> bytes) override { files_.step(), real_->write(bytes); }
    void sync() override {
      files_.step();
      real_->sync();
      files_.unsynced_.erase(path_.string());
    }
    void close() override { files_.step(), real_->close(); }

   private:
    CrashFiles& files_;
    std::filesystem::path path_;
    std::unique_ptr<OutputFile> real_;
  };

  void step() {
    if (count_++ == before_ || crashed_) {
      crashed_ = true;
      throw Crash();
    }
  }
  void moved(const std::filesystem::path& from, const std::filesystem::path& to) {
    std::set<std::string> renamed;
    for (const std::string& path : unsynced_)
      renamed.insert(path.starts_with(from.string() + "/") ? to.string() + path.substr(from.string().size()) : path);
    unsynced_ = std::move(renamed);
  }

  int before_, count_ = 0;
  bool crashed_ = false;
  std::set<std::string> unsynced_;
  std::vector<Rename> renames_;
};

}  // namespace shardfit::checkpoint
