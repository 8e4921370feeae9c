// The mathematics of a step, over plain row-major buffers of one device. Two implementations: CPU (own vector loops,
// LibTorch's matrix products) and CUDA (compositions of LibTorch operators).
//
// "Values" (weights, activations, their gradients) have the type the object was made with; statistics, tables, losses
// and attention's log-sums are fp32. Results do not depend on the number of threads. `accumulate` false = overwrite,
// true = add to what is there. Nothing here allocates counted memory but CUDA's temporaries: scratch comes from the
// caller.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace shardfit::kernels {

enum class Type { kFp32, kBf16 };
inline std::int64_t width_of(Type type) { return type == Type::kFp32 ? 4 : 2; }

// [out, in] as torch.nn.Linear stores a weight, [in, out] as GPT-2's Conv1D does.
enum class WeightLayout { kOutIn, kInOut };

struct LinearShape {
  std::int64_t rows = 0, in = 0, out = 0;
  WeightLayout layout = WeightLayout::kOutIn;
};

struct NormShape {
  std::int64_t rows = 0, width = 0;
  double epsilon = 1e-5;
};

// A document = consecutive tokens of the micro batch that attend to one another, and to nothing else.
struct Document {
  std::int64_t begin = 0, end = 0;  // rows of the micro batch
  std::int64_t sample = 0;          // number of the run's sample, for dropout
};

struct Dropout {
  double probability = 0;
  std::uint64_t key = 0;  // of seed, step, layer and place in the block; draws are a function of key and position
};

struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t row_q = 0, row_k = 0, row_v = 0;  // elements from a token to the next, also of the gradients
  std::int64_t row_out = 0;
  double scale = 1;
  std::optional<std::int64_t> window;  // a token sees this many tokens, itself included
  std::span<const Document> documents;
  std::int64_t rows = 0;      // of the micro batch; rows outside every document get zeros
  std::int64_t sequence = 0;  // rows of one sample: dropout counts places within it
  Dropout dropout;
  std::int64_t workers = 1;  // tiles at hand, `tile_bytes` each
  std::int64_t tile_bytes = 0;
};

struct AdamW {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::int64_t step = 1;      // counted from 1, for the bias correction
  double gradient_scale = 1;  // clipping
};

class Kernels {
 public:
  explicit Kernels(Type type) : type_(type) {}
  virtual ~Kernels() = default;
  Type type() const { return type_; }

  // y = x w^T (+ bias); dx = dy w; dw = dy^T x, dbias = column sums of dy. bias and dbias may be null.
  virtual void linear(const LinearShape& shape, const void* x, const void* w, const void* bias, void* y) = 0;
  virtual void linear_backward_input(const LinearShape& shape, const void* dy, const void* w, void* dx,
                                     bool accumulate) = 0;
  virtual void linear_backward_weight(const LinearShape& shape, const void* dy, const void* x, void* dw, Type dw_type,
                                      void* dbias, bool accumulate, void* tile,
                                      std::int64_t tile_bytes) = 0;  // tile: only where dw_type is not type()

  // stats: fp32, one reciprocal deviation a row (rms) or mean and reciprocal deviation (layer). dw_type: of dw and db.
  virtual void rms_norm(const NormShape& shape, const void* x, const void* w, void* y, float* stats) = 0;
  virtual void rms_norm_again(const NormShape& shape, const void* x, const void* w, const float* stats,
                              void* y) = 0;  // y from kept stats
  virtual void rms_norm_backward(const NormShape& shape, const void* dy, const void* x, const void* w,
                                 const float* stats, void* dx, bool accumulate_dx, void* dw, Type dw_type,
                                 bool accumulate_dw) = 0;
  virtual void layer_norm(const NormShape& shape, const void* x, const void* w, const void* b, void* y,
                          float* stats) = 0;
  virtual void layer_norm_again(const NormShape& shape, const void* x, const void* w, const void* b, const float* stats,
                                void* y) = 0;
  virtual void layer_norm_backward(const NormShape& shape, const void* dy, const void* x, const void* w,
                                   const float* stats, void* dx, bool accumulate_dx, void* dw, void* db, Type dw_type,
                                   bool accumulate_dw) = 0;

  // In place on rows of `heads` heads; table: fp32 [positions][head_dim], cosines then sines; `back` turns the other
  // way (gradient).
  virtual void rope(void* x, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                    const std::int32_t* positions, const float* table, bool back) = 0;

  // out, log_sum [rows][heads] fp32. Causal inside each document.
  virtual void attention(const AttentionShape& shape, const void* q, const void* k, const void* v, void* out,
                         float* log_sum, void* tiles) = 0;
  virtual void attention_backward(const AttentionShape& shape, const void* q, const void* k, const void* v,
                                  const void* out, const void* d_out, const float* log_sum, float* delta, void* dq,
                                  void* dk, void* dv, void* tiles) = 0;

  // y = silu(gate) * up; backward gives d_gate and turns d_y into d_up in place.
  virtual void swiglu(const void* gate, const void* up, void* y, std::int64_t elements) = 0;
  virtual void swiglu_backward(const void* gate, const void* up, void* d_y, void* d_gate, std::int64_t elements) = 0;
  // GELU with the tanh formula; backward in place on d_y.
  virtual void gelu(const void* x, void* y, std::int64_t elements) = 0;
  virtual void gelu_backward(const void* x, void* d_y, std::int64_t elements) = 0;

  virtual void add(const void* a, const void* b, void* y, std::int64_t elements) = 0;  // y = a + b; may alias
  // x times 0 or 1/(1-p), by position: element (row, column) of sample `samples[row / sequence]`.
  virtual void dropout(void* x, std::int64_t rows, std::int64_t width, std::int64_t sequence,
                       std::span<const std::int64_t> samples, const Dropout& dropout) = 0;

  // y[row] = table[ids[row]]; with `accumulate` added. Backward: table gradient rows += dx rows, in the order of the
  // rows.
  virtual void embedding(const void* table, const std::int32_t* ids, void* y, std::int64_t rows, std::int64_t width,
                         bool accumulate) = 0;
  virtual void embedding_backward(const void* dx, const std::int32_t* ids, std::int64_t rows, std::int64_t width,
                                  void* d_table, Type d_type) = 0;

  // Cross-entropy of each row against targets[row] (-100 = none, loss 0). With `scale` not null the logits become their
  // gradient, softmax minus one-hot, times *scale.
  virtual void cross_entropy(void* logits, const std::int32_t* targets, std::int64_t rows, std::int64_t vocabulary,
                             float* row_loss, const double* scale) = 0;

  virtual void fill_zero(void* data, std::int64_t bytes) = 0;
  virtual void copy_to_device(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void cast(const void* from, Type from_type, void* to, Type to_type, std::int64_t elements) = 0;
  virtual void add_cast(const void* from, Type from_type, void* to, Type to_type,
                        std::int64_t elements) = 0;                                       // to += from
  virtual double sum_of_squares(const void* data, Type type, std::int64_t elements) = 0;  // in fp64, fixed order
  virtual double sum(const float* data, std::int64_t elements) = 0;                       // in fp64, fixed order
  // copy: also writes the new parameters in type copy_type (null = none).
  virtual void adamw(const AdamW& settings, void* parameters, Type parameter_type, const void* gradients,
                     Type gradient_type, void* exp_avg, void* exp_avg_sq, Type state_type, void* copy, Type copy_type,
                     std::int64_t elements) = 0;
  virtual void wait() {}  // until the device has done all of it

 private:
  const Type type_;
};

std::unique_ptr<Kernels> make_cpu_kernels(Type type);
// On the GPU of this number, or with -1 on the CPU (for tests).
std::unique_ptr<Kernels> make_aten_kernels(Type type, int cuda_device);

// Draws for dropout: a 64-bit mix of key and position.
std::uint64_t mix(std::uint64_t key, std::uint64_t position);

}  // namespace shardfit::kernels
