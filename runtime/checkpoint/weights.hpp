// The weights of a Hugging Face folder by tensor name, whichever file they lie in.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/layout.hpp"
#include "runtime/checkpoint/safetensors.hpp"

namespace shardfit::checkpoint {

class HuggingFaceWeights {
 public:
  // model.safetensors, or model.safetensors.index.json and the files it names. Throws Error{weights_missing} (naming
  // pytorch_model.bin where there is only that) or Error{bad_safetensors}.
  explicit HuggingFaceWeights(const std::filesystem::path& folder);
  HuggingFaceWeights(HuggingFaceWeights&&) noexcept;
  ~HuggingFaceWeights();

  // A model saved without its head carries names without the base prefix ("h.0.ln_1.weight" for
  // "transformer.h.0.ln_1.weight", also "model."): both are found.
  const StoredTensor* find(const std::string& name) const;
  // Elements [first, first + out.size()) as fp32. Throws Error{weights_missing} naming the tensor, Error{wrong_shape}
  // if `shape` differs.
  void read(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t first,
            std::span<float> out) const;
  // The slice of `unit` that `rank` of `ranks` owns; reads only that; padding is zero.
  void read_slice(const FlatUnit& unit, std::int64_t rank, std::int64_t ranks, std::span<float> out) const;
  // Throws one Error{weights_missing | wrong_shape} that names the first few parameters that are missing or shaped
  // otherwise.
  void check(const std::vector<FlatUnit>& units) const;
  std::vector<std::string> names() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace shardfit::checkpoint
