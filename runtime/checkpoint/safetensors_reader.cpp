#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "runtime/checkpoint/safetensors.hpp"

namespace shardfit::checkpoint {
namespace {

constexpr std::int64_t kLongestHeader = 100'000'000;    // as in the reference implementation
constexpr std::size_t kPiece = std::size_t{256} << 10;  // of what is converted: stays in the cache

struct Named {
  const char* name;
  Storage storage;
  std::int64_t bytes;
};
// clang-format off
constexpr std::array<Named, 15> kStorages = {{{"F64", Storage::kF64, 8}, {"F32", Storage::kF32, 4}, {"F16", Storage::kF16, 2}, {"BF16", Storage::kBf16, 2},
                                              {"I64", Storage::kI64, 8}, {"I32", Storage::kI32, 4}, {"I16", Storage::kI16, 2}, {"I8", Storage::kI8, 1},
                                              {"U8", Storage::kU8, 1}, {"BOOL", Storage::kBool, 1}, {"U16", Storage::kU16, 2}, {"U32", Storage::kU32, 4},
                                              {"U64", Storage::kU64, 8}, {"F8_E4M3", Storage::kF8E4M3, 1}, {"F8_E5M2", Storage::kF8E5M2, 1}}};
// clang-format on

const Named& named(Storage storage) {
  return *std::find_if(kStorages.begin(), kStorages.end(), [&](const Named& n) { return n.storage == storage; });
}

[[noreturn]] void bad(const std::filesystem::path& path, const std::string& tensor, const std::string& what) {
  throw Error("bad_safetensors", tensor.empty() ? "" : "tensor " + tensor.substr(0, 200), what,
              "the file is damaged or cut short: fetch or export it again")
      .in_file(path.string());
}

void read_exactly(int descriptor, const std::filesystem::path& path, std::int64_t at, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t done = ::pread(descriptor, out.data(), out.size(), at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0)
      throw Error("file_unreadable", "", std::string("cannot read: ") + std::strerror(errno), "", kExitFailed)
          .in_file(path.string());
    if (done == 0) bad(path, "", "ends before its data do");
    at += done;
    out = out.subspan(static_cast<std::size_t>(done));
  }
}

std::int64_t whole(const nlohmann::json& value, const std::filesystem::path& path, const std::string& tensor,
                   const char* what) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > (std::uint64_t{1} << 62)) ||
      value.get<std::int64_t>() < 0)
    bad(path, tensor, std::string(what) + " is not a whole number of 0 or more");
  return value.get<std::int64_t>();
}

StoredTensor parse_tensor(const nlohmann::json& entry, const std::string& name, const std::filesystem::path& path,
                          std::int64_t data_bytes) {
  StoredTensor tensor;
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    bad(path, name, "lacks dtype, shape or data_offsets");
  const auto& dtype = entry.at("dtype");
  const auto found = std::find_if(kStorages.begin(), kStorages.end(), [&](const Named& n) {
    return dtype.is_string() && dtype.get<std::string>() == n.name;
  });
  if (found == kStorages.end()) bad(path, name, "has the dtype " + dtype.dump().substr(0, 40) + ", which is not known");
  tensor.storage = found->storage;
  const auto& shape = entry.at("shape");
  const auto& offsets = entry.at("data_offsets");
  if (!shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    bad(path, name, "has a shape or data_offsets that is not a list");
  std::int64_t bytes = found->bytes;
  for (const auto& dimension : shape) {
    tensor.shape.push_back(whole(dimension, path, name, "a dimension"));
    if (__builtin_mul_overflow(bytes, tensor.shape.back(), &bytes))
      bad(path, name, "has more bytes than can be counted");
  }
  tensor.begin = whole(offsets[0], path, name, "an offset");
  tensor.end = whole(offsets[1], path, name, "an offset");
  if (tensor.begin > tensor.end || tensor.end > data_bytes)
    bad(path, name,
        "reaches to byte " + std::to_string(tensor.end) + " of " + std::to_string(data_bytes) + " that the file has");
  if (tensor.end - tensor.begin != bytes)
    bad(path, name,
        "has " + std::to_string(tensor.end - tensor.begin) + " bytes where its shape needs " + std::to_string(bytes));
  return tensor;
}

template <class Stored, class Convert>
void convert_all(const std::byte* from, std::span<float> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    out[i] = convert(value);
  }
}

void convert(Storage storage, const std::byte* from, std::span<float> out) {
  if (storage == Storage::kBf16)
    convert_all<std::uint16_t>(from, out, [](std::uint16_t bits) { return from_bf16(bits); });
  else if (storage == Storage::kF16) convert_all<std::uint16_t>(from, out, from_fp16);
  else convert_all<double>(from, out, [](double value) { return static_cast<float>(value); });
}

}  // namespace

std::string_view name_of(Storage storage) { return named(storage).name; }
std::int64_t bytes_of(Storage storage) { return named(storage).bytes; }

std::int64_t StoredTensor::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0)
    throw Error(errno == ENOENT ? "file_missing" : "file_unreadable", "",
                std::string("cannot open: ") + std::strerror(errno))
        .in_file(path.string());
  try {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) bad(path_, "", "is not a regular file");
    const std::int64_t size = status.st_size;
    std::array<std::byte, 8> prefix;
    if (size < 8) bad(path_, "", "is too short to be a safetensors file");
    read_exactly(descriptor_, path_, 0, prefix);
    std::uint64_t length;
    std::memcpy(&length, prefix.data(), 8);
    if (length > static_cast<std::uint64_t>(kLongestHeader) || length > static_cast<std::uint64_t>(size - 8))
      bad(path_, "", "has a header of " + std::to_string(length) + " bytes in a file of " + std::to_string(size));
    std::string header(length, '\0');
    read_exactly(descriptor_, path_, 8, std::as_writable_bytes(std::span(header)));
    data_begin_ = 8 + static_cast<std::int64_t>(length);
    // A name that comes twice would be ambiguous: the parser is asked to tell.
    std::vector<std::string> keys;
    bool twice = false;
    const auto callback = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      if (event == nlohmann::json::parse_event_t::key && depth == 1) keys.push_back(value.get<std::string>());
      return true;
    };
    const auto json = nlohmann::json::parse(header, callback, false);
    if (json.is_discarded() || !json.is_object()) bad(path_, "", "has a header that is not a JSON object");
    std::sort(keys.begin(), keys.end());
    twice = std::adjacent_find(keys.begin(), keys.end()) != keys.end();
    if (twice) bad(path_, "", "names a tensor twice");
    for (const auto& [name, entry] : json.items()) {
      if (name == "__metadata__") {
        if (!entry.is_object()) bad(path_, "", "has metadata that is not an object");
        for (const auto& [key, value] : entry.items()) {
          if (!value.is_string()) bad(path_, "", "has metadata that is not text");
          metadata_.emplace(key, value.get<std::string>());
        }
      } else {
        tensors_.emplace(name, parse_tensor(entry, name, path_, size - data_begin_));
      }
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> extents;
    for (const auto& [name, tensor] : tensors_) extents.emplace_back(tensor.begin, tensor.end);
    std::sort(extents.begin(), extents.end());
    std::int64_t expected = 0;
    for (const auto& [begin, end] : extents) {
      if (begin != expected)
        bad(path_, "", "has tensors that overlap or leave a gap at byte " + std::to_string(expected));
      expected = end;
    }
    if (expected != size - data_begin_)
      bad(path_, "",
          "has " + std::to_string(size - data_begin_) + " bytes of data where its tensors need " +
              std::to_string(expected));
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept { *this = std::move(other); }
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_begin_, other.data_begin_);
  std::swap(tensors_, other.tensors_);
  std::swap(metadata_, other.metadata_);
  return *this;
}
SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void SafetensorsFile::read_bytes(const std::string& name, std::int64_t first, std::span<std::byte> out) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw Error("weights_missing", "tensor " + name, "is not in the file").in_file(path_.string());
  const std::int64_t size = tensor->end - tensor->begin;
  if (first < 0 || first > size || static_cast<std::int64_t>(out.size()) > size - first)
    throw Error("out_of_range", "tensor " + name,
                "bytes " + std::to_string(first) + " and " + std::to_string(out.size()) +
                    " more were asked for; it has " + std::to_string(size))
        .in_file(path_.string());
  read_exactly(descriptor_, path_, data_begin_ + tensor->begin + first, out);
}

void SafetensorsFile::read_fp32(const std::string& name, std::int64_t first, std::span<float> out) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw Error("weights_missing", "tensor " + name, "is not in the file").in_file(path_.string());
  const Storage storage = tensor->storage;
  if (storage == Storage::kF32) return read_bytes(name, first * 4, std::as_writable_bytes(out));
  if (storage != Storage::kBf16 && storage != Storage::kF16 && storage != Storage::kF64)
    throw Error(
        "wrong_type", "tensor " + name,
        "is stored as " + std::string(name_of(storage)) + ", which is not a floating-point type that can be trained",
        "give weights stored as F32, BF16 or F16")
        .in_file(path_.string());
  const std::int64_t width = bytes_of(storage);
  std::vector<std::byte> piece(std::min(out.size() * static_cast<std::size_t>(width), kPiece));
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), piece.size() / static_cast<std::size_t>(width));
    read_bytes(name, first * width, std::span(piece).first(count * static_cast<std::size_t>(width)));
    convert(storage, piece.data(), out.first(count));
    first += static_cast<std::int64_t>(count);
    out = out.subspan(count);
  }
}

}  // namespace shardfit::checkpoint
