// Tokenizing and reading weights.
//   files_bench TOKENIZER.json TEXT [WEIGHTS.safetensors]
// prints MB/s of Tokenizer::encode on one thread, and GB/s of SafetensorsFile::read_fp32 paired with plain pread of 8
// MiB pieces and with the checksum of checkpoints; medians of seven rounds, the pairs taken in turn.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "regions/base/files.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/xxh64.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace {

using namespace shardfit;
using Clock = std::chrono::steady_clock;

template <class Work>
double seconds(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void weights(const char* path) {
  const checkpoint::SafetensorsFile file(path);
  std::int64_t total = 0, largest = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    total += tensor.end - tensor.begin;
    largest = std::max(largest, tensor.elements());
  }
  std::vector<float> out(static_cast<std::size_t>(largest));
  std::vector<std::byte> piece(std::size_t{8} << 20);
  std::vector<double> read, plain, hashed;
  for (int round = 0; round < 7; ++round) {
    read.push_back(seconds([&] {
      for (const auto& [name, tensor] : file.tensors())
        file.read_fp32(name, 0, std::span(out).first(static_cast<std::size_t>(tensor.elements())));
    }));
    plain.push_back(seconds([&] {
      const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
      for (off_t at = 0; ::pread(descriptor, piece.data(), piece.size(), at) > 0;)
        at += static_cast<off_t>(piece.size());
      ::close(descriptor);
    }));
    checkpoint::Xxh64 hash;
    hashed.push_back(seconds([&] {
      for (std::int64_t done = 0; done < total; done += static_cast<std::int64_t>(piece.size())) hash.update(piece);
    }));
  }
  const double bytes = static_cast<double>(total) / 1e9;
  fmt::print("read_fp32 {:.2f} GB/s, plain pread {:.2f} GB/s, ratio {:.2f}; xxh64 {:.2f} GB/s\n", bytes / median(read),
             bytes / median(plain), median(plain) / median(read), bytes / median(hashed));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print(stderr, "files_bench TOKENIZER.json TEXT [WEIGHTS.safetensors]\n"), 2;
  const std::string text = read_file(argv[2]);
  std::vector<double> cold, warm;
  std::size_t tokens = 0;
  for (int round = 0; round < 7; ++round) {
    const auto tokenizer = tokenizer::Tokenizer::load(argv[1]);
    cold.push_back(seconds([&] { tokens = tokenizer.encode(text).size(); }));
    warm.push_back(seconds([&] { tokens = tokenizer.encode(text).size(); }));
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  fmt::print("encode {:.1f} MB into {} tokens: {:.1f} MB/s, {:.1f} MB/s with the words cached\n", megabytes, tokens,
             megabytes / median(cold), megabytes / median(warm));
  if (argc > 3) weights(argv[3]);
}
