// Whole files in and out. Writing is crash-safe: a reader sees the old file or the new one, never a part.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace shardfit {

// The file's bytes; throws Error{file_missing | file_unreadable} naming it. At most `limit` bytes (else
// Error{file_too_large}).
std::string read_file(const std::filesystem::path& path, std::size_t limit = std::size_t{1} << 30);
// Writes a temporary beside `path`, fsyncs it, renames it over `path` and fsyncs the folder; throws
// Error{file_unwritable}.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes, unsigned mode = 0644);
// Lower-case hexadecimal SHA-256 of the bytes.
std::string sha256_hex(std::string_view bytes);

}  // namespace shardfit
