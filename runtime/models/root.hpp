// What the families share: embedding, final norm with output projection and loss.
#pragma once
#include <string>

#include "runtime/models/block.hpp"

namespace shardfit::models {

class Root : public Family {
 public:
  struct Names {
    std::string embedding, positions, norm_weight, norm_bias, head;  // "" = the family has none
  };
  Root(const Math& math, const schedule::Sizes& sizes, const schedule::Unit& root, const Names& names,
       kernels::Kernels& kernels);

  void embed(const Flat& weights, const Batch& batch, const StepContext& context, void* out) override;
  void embed_backward(const Flat& gradients, const Batch& batch, const StepContext& context, void* d_out,
                      bool accumulate) override;
  double loss(const Flat& weights, const Flat* gradients, const Batch& batch, const void* stream, void* d_stream,
              char* scratch, const double* scale, bool accumulate) override;
  const void* logits(const Flat& weights, const void* stream, std::int64_t first, std::int64_t rows,
                     char* scratch) override;

 protected:
  // Offset of a parameter of `unit`, or -1 where it may be absent.
  static std::int64_t offset(const schedule::Unit& unit, const std::string& name, bool optional = false);
  const void* weight(const Flat& weights, std::int64_t offset) const {
    return offset < 0 ? nullptr : weights.at(offset);
  }
  kernels::Dropout dropout(double probability, const StepContext& context, int block, int place) const;
  std::int64_t rows() const { return sizes_.tokens(); }

  const Math math_;
  const schedule::Sizes sizes_;
  kernels::Kernels& kernels_;

 private:
  void final_norm(const Flat& weights, const void* stream, std::int64_t first, std::int64_t rows, char* scratch);
  std::int64_t embedding_ = -1, positions_ = -1, norm_weight_ = -1, norm_bias_ = -1, head_ = -1;
  std::int64_t embedding_elements_ = 0, position_elements_ = 0;
  schedule::Layout layout_;
};

std::unique_ptr<Family> make_llama(const Math& math, const schedule::Sizes& sizes,
                                   const std::vector<schedule::Unit>& units, kernels::Kernels& kernels,
                                   const float* rope_table);
std::unique_ptr<Family> make_gpt2(const Math& math, const schedule::Sizes& sizes,
                                  const std::vector<schedule::Unit>& units, kernels::Kernels& kernels);

}  // namespace shardfit::models
