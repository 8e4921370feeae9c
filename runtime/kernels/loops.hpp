// Single-threaded vector loops of the CPU kernels. loops.cpp is compiled once for each instruction set; loops() picks
// the widest that this processor has. Rows and column ranges are cut by the caller (cpu.cpp), so that threads never
// share a result.
#pragma once
#include <cstdint>

namespace shardfit::kernels {

struct Bf16 {
  std::uint16_t bits;
};

// Per value type. Everything accumulates in fp32.
template <typename T>
struct Loops {
  void (*rms_norm)(const T* x, const T* w, T* y, float* stats, bool keep_stats, std::int64_t rows, std::int64_t width,
                   float epsilon);
  void (*rms_norm_dx)(const T* dy, const T* x, const T* w, const float* stats, T* dx, bool accumulate,
                      std::int64_t rows, std::int64_t width);
  // Column range [first, last) of the weight gradient.
  void (*rms_norm_dw)(const T* dy, const T* x, const float* stats, float* dw, std::int64_t rows, std::int64_t width,
                      std::int64_t first, std::int64_t last);
  void (*layer_norm)(const T* x, const T* w, const T* b, T* y, float* stats, bool keep_stats, std::int64_t rows,
                     std::int64_t width, float epsilon);
  void (*layer_norm_dx)(const T* dy, const T* x, const T* w, const float* stats, T* dx, bool accumulate,
                        std::int64_t rows, std::int64_t width);
  void (*layer_norm_dw)(const T* dy, const T* x, const float* stats, float* dw, float* db, std::int64_t rows,
                        std::int64_t width, std::int64_t first, std::int64_t last);
  void (*rope)(T* x, std::int64_t rows, std::int64_t heads, std::int64_t dim, const std::int32_t* positions,
               const float* table, float sign);
  void (*swiglu)(const T* gate, const T* up, T* y, std::int64_t n);
  void (*swiglu_backward)(const T* gate, const T* up, T* dy, T* d_gate, std::int64_t n);
  void (*gelu)(const T* x, T* y, std::int64_t n);
  void (*gelu_backward)(const T* x, T* dy, std::int64_t n);
  void (*add)(const T* a, const T* b, T* y, std::int64_t n);
  void (*add_bias)(T* y, const T* bias, std::int64_t rows, std::int64_t width);
  void (*column_sum)(const T* x, float* sum, std::int64_t rows, std::int64_t width, std::int64_t first,
                     std::int64_t last);
  void (*row_dot)(const T* a, const T* b, float* out, std::int64_t out_stride, std::int64_t rows, std::int64_t stride,
                  std::int64_t width);
  float (*cross_entropy)(T* logits, std::int64_t vocabulary, std::int32_t target, bool gradient,
                         float scale);  // one row; target < 0 = none
  void (*load)(const T* from, std::int64_t stride, float* to, std::int64_t rows,
               std::int64_t width);  // rows of a head -> dense fp32
  void (*store)(const float* from, T* to, std::int64_t stride, std::int64_t rows, std::int64_t width);
};

struct SharedLoops {
  // Scores of a tile, rows x columns, row-major: column c is key first_key + c, row r is query first_query + r (both
  // counted in the document). Applies scale and mask, then softmax: one step of the online softmax: maxima, sums and
  // the rescaling factor of earlier output; scores become probabilities.
  void (*softmax_tile)(float* scores, std::int64_t rows, std::int64_t columns, std::int64_t first_query,
                       std::int64_t first_key, std::int64_t window, float scale, float* maxima, float* sums,
                       float* rescale);
  // probabilities again from the log-sums of the rows.
  void (*probability_tile)(float* scores, std::int64_t rows, std::int64_t columns, std::int64_t first_query,
                           std::int64_t first_key, std::int64_t window, float scale, const float* log_sum,
                           std::int64_t log_sum_stride);
  void (*score_gradient_tile)(const float* probabilities, float* gradient, std::int64_t rows, std::int64_t columns,
                              const float* delta, std::int64_t delta_stride, float scale);
  void (*scale_rows)(float* x, std::int64_t rows, std::int64_t width, const float* factors, bool divide);
  void (*add)(const float* from, float* to, std::int64_t n);
  void (*to_bf16)(const float* from, Bf16* to, std::int64_t n);
  void (*from_bf16)(const Bf16* from, float* to, std::int64_t n);
  void (*add_from_bf16)(const Bf16* from, float* to, std::int64_t n);
  void (*add_to_bf16)(const float* from, Bf16* to, std::int64_t n);  // to += from, rounded
  double (*square_sum)(const float* x, std::int64_t n);
  double (*square_sum_bf16)(const Bf16* x, std::int64_t n);
  void (*adamw)(float* p, const float* g, float* m, float* v, std::int64_t n, float decay, float rate, float beta1,
                float beta2, float root_correction, float epsilon, float gradient_scale, Bf16* copy);
};

struct LoopTable {
  Loops<float> fp32;
  Loops<Bf16> bf16;
  SharedLoops shared;
  const char* name;
};

const LoopTable& loops();

template <typename T>
const Loops<T>& loops_of();
template <>
inline const Loops<float>& loops_of<float>() {
  return loops().fp32;
}
template <>
inline const Loops<Bf16>& loops_of<Bf16>() {
  return loops().bf16;
}

}  // namespace shardfit::kernels
