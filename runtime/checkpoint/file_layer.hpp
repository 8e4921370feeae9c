// The file operations a checkpoint is made of, so that tests can stop the world between any two of them.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace shardfit::checkpoint {

// All throw Error{storage_failed, exit 13} naming the path and the system's reason.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;  // fsync
  virtual void close() = 0;
};

class FileLayer {
 public:
  virtual ~FileLayer() = default;
  virtual std::unique_ptr<OutputFile> create(const std::filesystem::path& path) = 0;  // truncates
  virtual void make_folder(const std::filesystem::path& path) = 0;                    // parents too
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  // Puts the folder `from` at `to` in one step. Where `to` exists, the two change places (what was at `to` is then at
  // `from`).
  virtual void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void sync_folder(const std::filesystem::path& path) = 0;
  virtual void remove_all(const std::filesystem::path& path) = 0;  // absent is fine
};

FileLayer& real_files();

// A whole small file through the layer: written and fsynced.
void write_file(FileLayer& files, const std::filesystem::path& path, std::string_view bytes);

inline constexpr int kExitStorage = 13;

}  // namespace shardfit::checkpoint
