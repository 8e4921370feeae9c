#include "regions/base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "regions/base/error.hpp"

namespace shardfit {
namespace {

Error file_error(const char* code, const std::filesystem::path& path, const std::string& what,
                 const std::string& remedy = "") {
  Error e(code, "", what, remedy);
  e.in_file(path.string());
  return e;
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t limit) {
  const Descriptor f{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (f.fd < 0)
    throw file_error(errno == ENOENT ? "file_missing" : "file_unreadable", path,
                     errno == ENOENT ? "no such file" : std::string("cannot be read: ") + std::strerror(errno),
                     errno == ENOENT ? "check the path" : "");
  struct stat st {};
  if (::fstat(f.fd, &st) == 0 && S_ISDIR(st.st_mode))
    throw file_error("file_unreadable", path, "is a folder, a file is needed");
  std::string out;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t n = ::read(f.fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw file_error("file_unreadable", path, std::string("cannot be read: ") + std::strerror(errno));
    if (n == 0) return out;
    out.append(buffer.data(), static_cast<std::size_t>(n));
    if (out.size() > limit)
      throw file_error("file_too_large", path, "is larger than " + std::to_string(limit) + " bytes");
  }
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes, unsigned mode) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::string temporary = (folder / ("." + path.filename().string() + ".XXXXXX")).string();
  const Descriptor f{::mkostemp(temporary.data(), O_CLOEXEC)};
  auto fail = [&](const char* step) {
    const int e = errno;
    if (f.fd >= 0) ::unlink(temporary.c_str());
    return file_error("file_unwritable", path, std::string(step) + ": " + std::strerror(e),
                      "check that the folder exists, is writable and has room");
  };
  if (f.fd < 0) throw fail("cannot be created");
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::write(f.fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw fail("cannot be written");
    at += static_cast<std::size_t>(n);
  }
  if (::fchmod(f.fd, mode) != 0 || ::fsync(f.fd) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0)
    throw fail("cannot be written");
  const Descriptor d{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (d.fd >= 0) ::fsync(d.fd);
}

// FIPS 180-4.
std::string sha256_hex(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 64> k = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  auto rotate = [](std::uint32_t x, int n) { return (x >> n) | (x << (32 - n)); };
  auto block = [&](const unsigned char* p) {
    std::array<std::uint32_t, 64> w{};
    for (int i = 0; i < 16; ++i)
      w[i] = std::uint32_t{p[4 * i]} << 24 | std::uint32_t{p[4 * i + 1]} << 16 | std::uint32_t{p[4 * i + 2]} << 8 |
             p[4 * i + 3];
    for (int i = 16; i < 64; ++i)
      w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
             (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    auto s = h;
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t t1 = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) +
                               ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const std::uint32_t t2 =
          (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (int i = 0; i < 8; ++i) h[i] += s[i];
  };
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t n = bytes.size();
  for (; n >= 64; p += 64, n -= 64) block(p);
  std::array<unsigned char, 128> tail{};
  std::memcpy(tail.data(), p, n);
  tail[n] = 0x80;
  const std::size_t total = n < 56 ? 64 : 128;
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  for (int i = 0; i < 8; ++i)
    tail[total - 1 - static_cast<std::size_t>(i)] = static_cast<unsigned char>(bits >> (8 * i));
  block(tail.data());
  if (total == 128) block(tail.data() + 64);
  std::string out;
  for (const std::uint32_t word : h)
    for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[word >> shift & 15];
  return out;
}

}  // namespace shardfit
