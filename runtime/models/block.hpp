// Forward and backward of a model's parts over buffers that the caller owns. No graph is recorded: each part has its
// hand-written backward, and selector/schedule says which tensors it keeps and how large its scratch is.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/kernels/kernels.hpp"
#include "runtime/models/math.hpp"
#include "selector/schedule/activations.hpp"
#include "selector/schedule/units.hpp"

namespace shardfit::models {

// The tokens of one micro batch of one rank: micro_batch x sequence rows, padded rows included.
struct Batch {
  const std::int32_t* ids = nullptr;         // on the device
  const std::int32_t* positions = nullptr;   // on the device, counted from 0 in each document
  const std::int32_t* targets = nullptr;     // on the device: the label of the next position, -100 where there is none
  std::vector<kernels::Document> documents;  // ascending; what lies outside of all is padding
  std::vector<std::int64_t> samples;         // by row of the batch: number in the run's order (dropout)
};

// One unit's parameters, or their gradients, in a flat buffer.
struct Flat {
  void* data = nullptr;
  kernels::Type type = kernels::Type::kFp32;
  void* at(std::int64_t offset) const { return static_cast<char*>(data) + offset * kernels::width_of(type); }
};

struct StepContext {
  std::uint64_t seed = 0;
  std::int64_t step = 0;  // for dropout's draws
  bool training = true;   // false: no dropout
};

class Family {
 public:
  virtual ~Family() = default;

  // out = embedding of the batch.
  virtual void embed(const Flat& weights, const Batch& batch, const StepContext& context, void* out) = 0;
  // Adds the embedding tables' gradients; `started`: the output projection's gradient is in the (tied) table already,
  // or earlier micro steps' gradients are there.
  virtual void embed_backward(const Flat& gradients, const Batch& batch, const StepContext& context, void* d_out,
                              bool accumulate) = 0;

  // in, out: rows x hidden. saved: schedule::saved_layout; scratch: schedule::forward_layout.
  virtual void forward(int block, const Flat& weights, const Batch& batch, const StepContext& context, const void* in,
                       char* saved, void* out, char* scratch) = 0;
  // d_stream: gradient of out, becomes the gradient of in. Gradients of the weights are written, or added with
  // `accumulate`.
  virtual void backward(int block, const Flat& weights, const Flat& gradients, const Batch& batch,
                        const StepContext& context, const void* in, const char* saved, void* d_stream, char* scratch,
                        bool accumulate) = 0;

  // Final norm, output projection and cross-entropy, schedule::Sizes::loss_rows rows at a time. Returns the sum of the
  // losses of this batch's supervised tokens. With `scale`: gradients too (times *scale), d_stream written. scratch:
  // schedule::loss_layout.
  virtual double loss(const Flat& weights, const Flat* gradients, const Batch& batch, const void* stream,
                      void* d_stream, char* scratch, const double* scale, bool accumulate) = 0;
  // Logits of rows [first, first + rows), rows <= loss_rows; they lie in scratch until the next call.
  virtual const void* logits(const Flat& weights, const void* stream, std::int64_t first, std::int64_t rows,
                             char* scratch) = 0;
};

// `rope_table`: filled by fill_rope_table, on the device; null for GPT-2.
std::unique_ptr<Family> make_family(const Math& math, const schedule::Sizes& sizes,
                                    const std::vector<schedule::Unit>& units, kernels::Kernels& kernels,
                                    const float* rope_table);

}  // namespace shardfit::models
