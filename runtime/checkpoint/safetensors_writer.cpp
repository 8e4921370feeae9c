#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/xxh64.hpp"

namespace shardfit::checkpoint {

Written write_safetensors(FileLayer& files, const std::filesystem::path& path,
                          const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata,
                          std::size_t buffer_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    std::int64_t size = bytes_of(tensor.storage);
    for (const std::int64_t d : tensor.shape) size *= d;
    header[tensor.name] = {
        {"dtype", name_of(tensor.storage)}, {"shape", tensor.shape}, {"data_offsets", {at, at + size}}};
    at += size;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // data begin at a multiple of 8
  const std::uint64_t length = text.size();

  const auto file = files.create(path);
  Xxh64 checksum;
  Written written;
  const auto put = [&](std::span<const std::byte> bytes) {
    checksum.update(bytes);
    file->write(bytes);
    written.bytes += static_cast<std::int64_t>(bytes.size());
  };
  put(std::as_bytes(std::span(&length, 1)));
  put(std::as_bytes(std::span(text)));
  // Whole elements of every type fit: the buffer is a multiple of 8.
  std::vector<std::byte> buffer(std::max<std::size_t>(buffer_bytes / 8 * 8, 8));
  for (const TensorToWrite& tensor : tensors) {
    std::int64_t size = bytes_of(tensor.storage);
    for (const std::int64_t d : tensor.shape) size *= d;
    for (std::int64_t done = 0; done < size;) {
      const auto piece = std::span(buffer).first(
          static_cast<std::size_t>(std::min<std::int64_t>(size - done, static_cast<std::int64_t>(buffer.size()))));
      tensor.fill(done, piece);
      put(piece);
      done += static_cast<std::int64_t>(piece.size());
    }
  }
  file->sync();
  file->close();
  written.xxh64 = checksum.hex();
  return written;
}

TensorToWrite tensor_of(std::string name, std::vector<std::int64_t> shape, std::span<const float> values,
                        Storage storage) {
  if (storage != Storage::kF32 && storage != Storage::kBf16 && storage != Storage::kF16)
    throw Error("wrong_type", "tensor " + name, "fp32 values cannot be written as " + std::string(name_of(storage)));
  return {std::move(name), storage, std::move(shape),
          [values, storage](std::int64_t first_byte, std::span<std::byte> out) {
            if (storage == Storage::kF32) {
              std::memcpy(out.data(), reinterpret_cast<const std::byte*>(values.data()) + first_byte, out.size());
              return;
            }
            const auto first = static_cast<std::size_t>(first_byte / 2);
            const auto put = [&](auto convert) {
              for (std::size_t i = 0; i < out.size() / 2; ++i) {
                const std::uint16_t bits = convert(values[first + i]);
                std::memcpy(out.data() + 2 * i, &bits, 2);
              }
            };
            if (storage == Storage::kBf16) put([](float value) { return to_bf16(value); });
            else put([](float value) { return to_fp16(value); });
          }};
}

}  // namespace shardfit::checkpoint
