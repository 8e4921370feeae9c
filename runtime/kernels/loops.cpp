// Compiled once for each instruction set with SHARDFIT_ISA = v2 | v3 | v4: plain loops that the compiler turns into
// vectors. No inline function of the standard library may be instantiated here: the linker would keep one copy of it,
// of whichever instruction set.
#include "runtime/kernels/loops.hpp"

#define SHARDFIT_JOIN2(a, b) a##b
#define SHARDFIT_JOIN(a, b) SHARDFIT_JOIN2(a, b)

namespace shardfit::kernels {
namespace {

using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint32_t;

inline float get(const float* x, int64_t i) { return x[i]; }
inline float get(const Bf16* x, int64_t i) { return __builtin_bit_cast(float, static_cast<uint32_t>(x[i].bits) << 16); }
inline void put(float* x, int64_t i, float value) { x[i] = value; }
inline void put(Bf16* x, int64_t i, float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  x[i].bits = static_cast<uint16_t>((nan ? bits | 0x400000U : rounded) >> 16);
}

// e^x within 2 units in the last place; 0 below -87.3, infinity above 88.7.
inline float exp_of(float x) {
  const float bounded = x < -87.3f ? -87.3f : x > 88.7f ? 88.7f : x;
  const float shifted = bounded * 1.44269504088896341f + 12582912.0f;  // rounds to a whole number
  const float whole = shifted - 12582912.0f;
  const float rest = (bounded - whole * 0.693359375f) - whole * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * rest + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  p = p * rest * rest + rest + 1.0f;
  const float power = __builtin_bit_cast(float, (static_cast<int32_t>(whole) + 127) << 23);
  const float result = p * power;
  return x < -87.3f ? 0.0f : x > 88.7f ? __builtin_inff() : x != x ? x : result;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }
inline float tanh_of(float x) { return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f); }

template <typename T>
void rms_norm(const T* x, const T* w, T* y, float* stats, bool keep_stats, int64_t rows, int64_t width, float epsilon) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    float inverse = stats[r];
    if (keep_stats) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) sum += get(x, i) * get(x, i);
      inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + epsilon);
      stats[r] = inverse;
    }
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) put(y, i, get(x, i) * inverse * get(w, i));
  }
}

template <typename T>
void rms_norm_dx(const T* dy, const T* x, const T* w, const float* stats, T* dx, bool accumulate, int64_t rows,
                 int64_t width) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    const float inverse = stats[r];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; ++i) dot += get(dy, i) * get(w, i) * get(x, i);
    const float factor = dot * inverse * inverse * inverse / static_cast<float>(width);
    if (accumulate) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i)
        put(dx, i, get(dx, i) + get(dy, i) * get(w, i) * inverse - get(x, i) * factor);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) put(dx, i, get(dy, i) * get(w, i) * inverse - get(x, i) * factor);
    }
  }
}

constexpr int64_t kColumns = 128;  // of a column reduction at once: its sums stay in the first cache

template <typename T>
void rms_norm_dw(const T* dy, const T* x, const float* stats, float* dw, int64_t rows, int64_t width, int64_t first,
                 int64_t last) {
  for (int64_t begin = first; begin < last; begin += kColumns) {
    const int64_t n = last - begin < kColumns ? last - begin : kColumns;
    float sums[kColumns] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const T* dy_row = dy + r * width + begin;
      const T* x_row = x + r * width + begin;
      const float inverse = stats[r];
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sums[i] += get(dy_row, i) * get(x_row, i) * inverse;
    }
    for (int64_t i = 0; i < n; ++i) dw[begin + i] += sums[i];
  }
}

template <typename T>
void layer_norm(const T* x, const T* w, const T* b, T* y, float* stats, bool keep_stats, int64_t rows, int64_t width,
                float epsilon) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    if (keep_stats) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) sum += get(x, i);
      const float mean = sum / static_cast<float>(width);
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < width; ++i) squares += (get(x, i) - mean) * (get(x, i) - mean);
      stats[2 * r] = mean;
      stats[2 * r + 1] = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + epsilon);
    }
    const float mean = stats[2 * r], inverse = stats[2 * r + 1];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) put(y, i, (get(x, i) - mean) * inverse * get(w, i) + get(b, i));
  }
}

template <typename T>
void layer_norm_dx(const T* dy, const T* x, const T* w, const float* stats, T* dx, bool accumulate, int64_t rows,
                   int64_t width) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    const float mean = stats[2 * r], inverse = stats[2 * r + 1];
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < width; ++i) {
      const float g = get(dy, i) * get(w, i);
      sum += g;
      dot += g * (get(x, i) - mean) * inverse;
    }
    sum /= static_cast<float>(width);
    dot /= static_cast<float>(width);
    if (accumulate) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i)
        put(dx, i, get(dx, i) + (get(dy, i) * get(w, i) - sum - (get(x, i) - mean) * inverse * dot) * inverse);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i)
        put(dx, i, (get(dy, i) * get(w, i) - sum - (get(x, i) - mean) * inverse * dot) * inverse);
    }
  }
}

template <typename T>
void layer_norm_dw(const T* dy, const T* x, const float* stats, float* dw, float* db, int64_t rows, int64_t width,
                   int64_t first, int64_t last) {
  for (int64_t begin = first; begin < last; begin += kColumns) {
    const int64_t n = last - begin < kColumns ? last - begin : kColumns;
    float weight[kColumns] = {}, bias[kColumns] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const T* dy_row = dy + r * width + begin;
      const T* x_row = x + r * width + begin;
      const float mean = stats[2 * r], inverse = stats[2 * r + 1];
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        weight[i] += get(dy_row, i) * (get(x_row, i) - mean) * inverse;
        bias[i] += get(dy_row, i);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      dw[begin + i] += weight[i];
      db[begin + i] += bias[i];
    }
  }
}

template <typename T>
void rope(T* x, int64_t rows, int64_t heads, int64_t dim, const int32_t* positions, const float* table, float sign) {
  const int64_t half = dim / 2;
  for (int64_t r = 0; r < rows; ++r) {
    const float* cosines = table + positions[r] * dim;
    const float* sines = cosines + half;
    for (int64_t h = 0; h < heads; ++h, x += dim) {
      T* low = x;
      T* high = x + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = get(low, i), b = get(high, i), sine = sines[i] * sign;
        put(low, i, a * cosines[i] - b * sine);
        put(high, i, b * cosines[i] + a * sine);
      }
    }
  }
}

template <typename T>
void swiglu(const T* gate, const T* up, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) put(y, i, get(gate, i) * sigmoid(get(gate, i)) * get(up, i));
}

template <typename T>
void swiglu_backward(const T* gate, const T* up, T* dy, T* d_gate, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = get(gate, i), d = get(dy, i), s = sigmoid(g);
    put(d_gate, i, d * get(up, i) * s * (1.0f + g * (1.0f - s)));
    put(dy, i, d * g * s);
  }
}

constexpr float kGeluA = 0.7978845608028654f, kGeluB = 0.044715f;

template <typename T>
void gelu(const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float v = get(x, i);
    put(y, i, 0.5f * v * (1.0f + tanh_of(kGeluA * (v + kGeluB * v * v * v))));
  }
}

template <typename T>
void gelu_backward(const T* x, T* dy, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float v = get(x, i), t = tanh_of(kGeluA * (v + kGeluB * v * v * v));
    put(dy, i, get(dy, i) * (0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * kGeluA * (1.0f + 3.0f * kGeluB * v * v)));
  }
}

template <typename T>
void add(const T* a, const T* b, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) put(y, i, get(a, i) + get(b, i));
}

template <typename T>
void add_bias(T* y, const T* bias, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r, y += width)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) put(y, i, get(y, i) + get(bias, i));
}

template <typename T>
void column_sum(const T* x, float* sum, int64_t rows, int64_t width, int64_t first, int64_t last) {
  for (int64_t begin = first; begin < last; begin += kColumns) {
    const int64_t n = last - begin < kColumns ? last - begin : kColumns;
    float sums[kColumns] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * width + begin;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sums[i] += get(row, i);
    }
    for (int64_t i = 0; i < n; ++i) sum[begin + i] += sums[i];
  }
}

template <typename T>
void row_dot(const T* a, const T* b, float* out, int64_t out_stride, int64_t rows, int64_t stride, int64_t width) {
  for (int64_t r = 0; r < rows; ++r, a += stride, b += stride) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += get(a, i) * get(b, i);
    out[r * out_stride] = sum;
  }
}

template <typename T>
float cross_entropy(T* logits, int64_t vocabulary, int32_t target, bool gradient, float scale) {
  if (target < 0) {
    if (gradient)
      for (int64_t i = 0; i < vocabulary; ++i) put(logits, i, 0.0f);
    return 0;
  }
  float most = get(logits, 0);
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < vocabulary; ++i) most = get(logits, i) > most ? get(logits, i) : most;
  // Pieces of 1024 keep the error of a long fp32 sum small.
  double sum = 0;
  for (int64_t begin = 0; begin < vocabulary; begin += 1024) {
    const int64_t end = begin + 1024 < vocabulary ? begin + 1024 : vocabulary;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = begin; i < end; ++i) part += exp_of(get(logits, i) - most);
    sum += part;
  }
  const float loss = static_cast<float>(__builtin_log(sum)) + most - get(logits, target);
  if (gradient) {
    const float factor = scale / static_cast<float>(sum);
#pragma omp simd
    for (int64_t i = 0; i < vocabulary; ++i) {
      const float p = exp_of(get(logits, i) - most) * factor;
      put(logits, i, i == target ? p - scale : p);
    }
  }
  return loss;
}

template <typename T>
void load(const T* from, int64_t stride, float* to, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r, from += stride, to += width)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) to[i] = get(from, i);
}

template <typename T>
void store(const float* from, T* to, int64_t stride, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r, from += width, to += stride)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) put(to, i, from[i]);
}

// Keys a query sees: [from, until) of the tile's columns.
struct Seen {
  int64_t from, until;
};
inline Seen seen_by(int64_t query, int64_t first_key, int64_t columns, int64_t window) {
  int64_t until = query - first_key + 1;
  until = until < 0 ? 0 : until > columns ? columns : until;
  int64_t from = window > 0 ? query - window + 1 - first_key : 0;
  from = from < 0 ? 0 : from > until ? until : from;
  return {from, until};
}

void softmax_tile(float* scores, int64_t rows, int64_t columns, int64_t first_query, int64_t first_key, int64_t window,
                  float scale, float* maxima, float* sums, float* rescale) {
  for (int64_t r = 0; r < rows; ++r, scores += columns) {
    const Seen seen = seen_by(first_query + r, first_key, columns, window);
    float most = maxima[r];
#pragma omp simd reduction(max : most)
    for (int64_t i = seen.from; i < seen.until; ++i) most = scores[i] * scale > most ? scores[i] * scale : most;
    const float base = most < -3.0e38f ? 0.0f : most;  // nothing seen yet
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = seen.from; i < seen.until; ++i) {
      const float p = exp_of(scores[i] * scale - base);
      scores[i] = p;
      sum += p;
    }
    for (int64_t i = 0; i < seen.from; ++i) scores[i] = 0;
    for (int64_t i = seen.until; i < columns; ++i) scores[i] = 0;
    const float old = maxima[r] < -3.0e38f ? 0.0f : exp_of(maxima[r] - base);
    rescale[r] = old;
    sums[r] = sums[r] * old + sum;
    maxima[r] = most;
  }
}

void probability_tile(float* scores, int64_t rows, int64_t columns, int64_t first_query, int64_t first_key,
                      int64_t window, float scale, const float* log_sum, int64_t log_sum_stride) {
  for (int64_t r = 0; r < rows; ++r, scores += columns) {
    const Seen seen = seen_by(first_query + r, first_key, columns, window);
    const float base = log_sum[r * log_sum_stride];
#pragma omp simd
    for (int64_t i = seen.from; i < seen.until; ++i) scores[i] = exp_of(scores[i] * scale - base);
    for (int64_t i = 0; i < seen.from; ++i) scores[i] = 0;
    for (int64_t i = seen.until; i < columns; ++i) scores[i] = 0;
  }
}

void score_gradient_tile(const float* probabilities, float* gradient, int64_t rows, int64_t columns, const float* delta,
                         int64_t delta_stride, float scale) {
  for (int64_t r = 0; r < rows; ++r, probabilities += columns, gradient += columns) {
    const float d = delta[r * delta_stride];
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) gradient[i] = probabilities[i] * (gradient[i] - d) * scale;
  }
}

void scale_rows(float* x, int64_t rows, int64_t width, const float* factors, bool divide) {
  for (int64_t r = 0; r < rows; ++r, x += width) {
    const float factor = divide ? (factors[r] > 0 ? 1.0f / factors[r] : 0.0f) : factors[r];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) x[i] *= factor;
  }
}

void add_fp32(const float* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}
void to_bf16(const float* from, Bf16* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) put(to, i, from[i]);
}
void from_bf16(const Bf16* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = get(from, i);
}
void add_from_bf16(const Bf16* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] += get(from, i);
}
void add_to_bf16(const float* from, Bf16* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) put(to, i, get(to, i) + from[i]);
}

template <typename T>
double square_sum(const T* x, int64_t n) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = begin + 1024 < n ? begin + 1024 : n;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = begin; i < end; ++i) part += get(x, i) * get(x, i);
    total += static_cast<double>(part);
  }
  return total;
}

void adamw_block(float* p, const float* g, float* m, float* v, int64_t n, float decay, float rate, float beta1,
                 float beta2, float root_correction, float epsilon, float gradient_scale) {
  const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * gradient_scale;
    const float first = beta1 * m[i] + rest1 * gradient;
    const float second = beta2 * v[i] + rest2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * decay - rate * first / (__builtin_sqrtf(second) * root_correction + epsilon);
  }
}

void adamw(float* p, const float* g, float* m, float* v, int64_t n, float decay, float rate, float beta1, float beta2,
           float root_correction, float epsilon, float gradient_scale, Bf16* copy) {
  // With a copy block by block, so that the new parameters are still in the cache when they are rounded.
  const int64_t block = copy ? 4096 : n;
  for (int64_t first = 0; first < n; first += block) {
    const int64_t size = n - first < block ? n - first : block;
    adamw_block(p + first, g + first, m + first, v + first, size, decay, rate, beta1, beta2, root_correction, epsilon,
                gradient_scale);
    if (copy) to_bf16(p + first, copy + first, size);
  }
}

template <typename T>
constexpr Loops<T> table_of() {
  return {rms_norm<T>, rms_norm_dx<T>, rms_norm_dw<T>,     layer_norm<T>,    layer_norm_dx<T>, layer_norm_dw<T>,
          rope<T>,     swiglu<T>,      swiglu_backward<T>, gelu<T>,          gelu_backward<T>, add<T>,
          add_bias<T>, column_sum<T>,  row_dot<T>,         cross_entropy<T>, load<T>,          store<T>};
}

}  // namespace

extern const LoopTable SHARDFIT_JOIN(kLoops_, SHARDFIT_ISA);
const LoopTable SHARDFIT_JOIN(kLoops_, SHARDFIT_ISA) = {
    table_of<float>(),
    table_of<Bf16>(),
    {softmax_tile, probability_tile, score_gradient_tile, scale_rows, add_fp32, to_bf16, from_bf16, add_from_bf16,
     add_to_bf16, square_sum<float>, square_sum<Bf16>, adamw},
#define SHARDFIT_TEXT2(a) #a
#define SHARDFIT_TEXT(a) SHARDFIT_TEXT2(a)
    "x86-64-" SHARDFIT_TEXT(SHARDFIT_ISA)};

}  // namespace shardfit::kernels
