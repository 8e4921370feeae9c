// The CPU's kernels: loops of loops.cpp cut over threads, matrix products of gemm.cpp, attention of cpu_attention.cpp.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/kernels/cpu_attention.hpp"
#include "runtime/kernels/gemm.hpp"
#include "runtime/kernels/kernels.hpp"
#include "runtime/kernels/loops.hpp"

namespace shardfit::kernels {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements that are worth a thread
constexpr std::int64_t kBlock = 65536;  // elements of one partial sum: fixed, so that sums do not depend on threads
constexpr std::int64_t kColumnGrain = 128;

template <typename Work>
void over(std::int64_t n, std::int64_t grain, const Work& work) {
  if (n <= 0) return;
  at::parallel_for(0, n, std::max<std::int64_t>(grain, 1), work);
}
std::int64_t row_grain(std::int64_t width) {
  return std::max<std::int64_t>(kGrain / std::max<std::int64_t>(width, 1), 1);
}

const LoopTable& table() { return loops(); }

template <typename T>
class Cpu final : public Kernels {
 public:
  Cpu() : Kernels(std::is_same_v<T, float> ? Type::kFp32 : Type::kBf16), loops_(loops_of<T>()) {}

  void linear(const LinearShape& s, const void* x, const void* w, const void* bias, void* y) override {
    const bool out_in = s.layout == WeightLayout::kOutIn;
    gemm(type(), false, out_in, s.rows, s.out, s.in, x, s.in, w, out_in ? s.in : s.out, false, y, s.out);
    if (bias)
      over(s.rows, row_grain(s.out), [&](std::int64_t begin, std::int64_t end) {
        loops_.add_bias(static_cast<T*>(y) + begin * s.out, static_cast<const T*>(bias), end - begin, s.out);
      });
  }
  void linear_backward_input(const LinearShape& s, const void* dy, const void* w, void* dx, bool accumulate) override {
    const bool out_in = s.layout == WeightLayout::kOutIn;
    gemm(type(), false, !out_in, s.rows, s.in, s.out, dy, s.out, w, out_in ? s.in : s.out, accumulate, dx, s.in);
  }
  void linear_backward_weight(const LinearShape& s, const void* dy, const void* x, void* dw, Type dw_type, void* dbias,
                              bool accumulate, void* tile, std::int64_t tile_bytes) override {
    const bool out_in = s.layout == WeightLayout::kOutIn;
    const auto weight_rows = out_in ? s.out : s.in, weight_columns = out_in ? s.in : s.out;
    const auto* left = static_cast<const T*>(out_in ? dy : x);
    const auto* right = static_cast<const T*>(out_in ? x : dy);
    if (dw_type == type()) {
      gemm(type(), true, false, weight_rows, weight_columns, s.rows, left, weight_rows, right, weight_columns,
           accumulate, dw, weight_columns);
    } else {  // a few rows of the weight at a time, through the tile
      const auto rows = std::max<std::int64_t>(tile_bytes / (weight_columns * static_cast<std::int64_t>(sizeof(T))), 1);
      for (std::int64_t first = 0; first < weight_rows; first += rows) {
        const auto n = std::min(rows, weight_rows - first);
        gemm(type(), true, false, n, weight_columns, s.rows, left + first, weight_rows, right, weight_columns, false,
             tile, weight_columns);
        auto* to = static_cast<char*>(dw) + first * weight_columns * width_of(dw_type);
        if (accumulate) add_cast(tile, type(), to, dw_type, n * weight_columns);
        else cast(tile, type(), to, dw_type, n * weight_columns);
      }
    }
    if (dbias)
      column_results(s.out, dbias, dw_type, accumulate, [&](float* sums, std::int64_t begin, std::int64_t end) {
        loops_.column_sum(static_cast<const T*>(dy), sums, s.rows, s.out, begin, end);
      });
  }

  void rms_norm(const NormShape& s, const void* x, const void* w, void* y, float* stats) override {
    rms(s, x, w, y, stats, true);
  }
  void rms_norm_again(const NormShape& s, const void* x, const void* w, const float* stats, void* y) override {
    rms(s, x, w, y, const_cast<float*>(stats), false);
  }
  void rms_norm_backward(const NormShape& s, const void* dy, const void* x, const void* w, const float* stats, void* dx,
                         bool accumulate_dx, void* dw, Type dw_type, bool accumulate_dw) override {
    // The weight's gradient first: dx may overwrite dy.
    column_results(s.width, dw, dw_type, accumulate_dw, [&](float* sums, std::int64_t begin, std::int64_t end) {
      loops_.rms_norm_dw(static_cast<const T*>(dy), static_cast<const T*>(x), stats, sums, s.rows, s.width, begin, end);
    });
    over(s.rows, row_grain(s.width), [&](std::int64_t begin, std::int64_t end) {
      const auto at = begin * s.width;
      loops_.rms_norm_dx(static_cast<const T*>(dy) + at, static_cast<const T*>(x) + at, static_cast<const T*>(w),
                         stats + begin, static_cast<T*>(dx) + at, accumulate_dx, end - begin, s.width);
    });
  }
  void layer_norm(const NormShape& s, const void* x, const void* w, const void* b, void* y, float* stats) override {
    layer(s, x, w, b, y, stats, true);
  }
  void layer_norm_again(const NormShape& s, const void* x, const void* w, const void* b, const float* stats,
                        void* y) override {
    layer(s, x, w, b, y, const_cast<float*>(stats), false);
  }
  void layer_norm_backward(const NormShape& s, const void* dy, const void* x, const void* w, const float* stats,
                           void* dx, bool accumulate_dx, void* dw, void* db, Type dw_type,
                           bool accumulate_dw) override {
    std::vector<float> sums(static_cast<std::size_t>(2 * s.width));
    over(s.width, kColumnGrain, [&](std::int64_t begin, std::int64_t end) {
      loops_.layer_norm_dw(static_cast<const T*>(dy), static_cast<const T*>(x), stats, sums.data(),
                           sums.data() + s.width, s.rows, s.width, begin, end);
    });
    put_columns(sums.data(), dw, dw_type, accumulate_dw, s.width);
    put_columns(sums.data() + s.width, db, dw_type, accumulate_dw, s.width);
    over(s.rows, row_grain(s.width), [&](std::int64_t begin, std::int64_t end) {
      const auto at = begin * s.width;
      loops_.layer_norm_dx(static_cast<const T*>(dy) + at, static_cast<const T*>(x) + at, static_cast<const T*>(w),
                           stats + 2 * begin, static_cast<T*>(dx) + at, accumulate_dx, end - begin, s.width);
    });
  }

  void rope(void* x, std::int64_t rows, std::int64_t heads, std::int64_t dim, const std::int32_t* positions,
            const float* angles, bool back) override {
    over(rows, row_grain(heads * dim), [&](std::int64_t begin, std::int64_t end) {
      loops_.rope(static_cast<T*>(x) + begin * heads * dim, end - begin, heads, dim, positions + begin, angles,
                  back ? -1.0f : 1.0f);
    });
  }

  void attention(const AttentionShape& shape, const void* q, const void* k, const void* v, void* out, float* log_sum,
                 void* tiles) override {
    attention_forward(shape, static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                      static_cast<T*>(out), log_sum, tiles);
  }
  void attention_backward(const AttentionShape& shape, const void* q, const void* k, const void* v, const void* out,
                          const void* d_out, const float* log_sum, float* delta, void* dq, void* dk, void* dv,
                          void* tiles) override {
    kernels::attention_backward(shape, static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                                static_cast<const T*>(out), static_cast<const T*>(d_out), log_sum, delta,
                                static_cast<T*>(dq), static_cast<T*>(dk), static_cast<T*>(dv), tiles);
  }

  void swiglu(const void* gate, const void* up, void* y, std::int64_t n) override {
    over(n, kGrain, [&](std::int64_t b, std::int64_t e) {
      loops_.swiglu(static_cast<const T*>(gate) + b, static_cast<const T*>(up) + b, static_cast<T*>(y) + b, e - b);
    });
  }
  void swiglu_backward(const void* gate, const void* up, void* dy, void* d_gate, std::int64_t n) override {
    over(n, kGrain, [&](std::int64_t b, std::int64_t e) {
      loops_.swiglu_backward(static_cast<const T*>(gate) + b, static_cast<const T*>(up) + b, static_cast<T*>(dy) + b,
                             static_cast<T*>(d_gate) + b, e - b);
    });
  }
  void gelu(const void* x, void* y, std::int64_t n) override {
    over(n, kGrain, [&](std::int64_t b, std::int64_t e) {
      loops_.gelu(static_cast<const T*>(x) + b, static_cast<T*>(y) + b, e - b);
    });
  }
  void gelu_backward(const void* x, void* dy, std::int64_t n) override {
    over(n, kGrain, [&](std::int64_t b, std::int64_t e) {
      loops_.gelu_backward(static_cast<const T*>(x) + b, static_cast<T*>(dy) + b, e - b);
    });
  }
  void add(const void* a, const void* b, void* y, std::int64_t n) override {
    over(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      loops_.add(static_cast<const T*>(a) + begin, static_cast<const T*>(b) + begin, static_cast<T*>(y) + begin,
                 end - begin);
    });
  }
  void dropout(void* x, std::int64_t rows, std::int64_t width, std::int64_t sequence,
               std::span<const std::int64_t> samples, const Dropout& d) override {
    if (d.probability <= 0) return;
    const auto limit = drop_limit(d.probability);
    const auto keep = static_cast<float>(1.0 / (1.0 - d.probability));
    over(rows, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const auto key = mix(d.key, static_cast<std::uint64_t>(samples[static_cast<std::size_t>(r / sequence)]));
        auto* row = static_cast<T*>(x) + r * width;
        for (std::int64_t i = 0; i < width; ++i) {
          const bool dropped = mix(key, static_cast<std::uint64_t>((r % sequence) * width + i)) < limit;
          float value;
          loops_.load(row + i, 1, &value, 1, 1);
          value = dropped ? 0.0f : value * keep;
          loops_.store(&value, row + i, 1, 1, 1);
        }
      }
    });
  }

  void embedding(const void* from, const std::int32_t* ids, void* y, std::int64_t rows, std::int64_t width,
                 bool accumulate) override {
    over(rows, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const auto* row = static_cast<const T*>(from) + ids[r] * width;
        auto* to = static_cast<T*>(y) + r * width;
        if (accumulate) loops_.add(to, row, to, width);
        else std::memcpy(to, row, static_cast<std::size_t>(width) * sizeof(T));
      }
    });
  }
  void embedding_backward(const void* dx, const std::int32_t* ids, std::int64_t rows, std::int64_t width, void* d_table,
                          Type d_type) override {
    const auto& shared = table().shared;
    over(width, kColumnGrain, [&](std::int64_t begin, std::int64_t end) {  // threads share columns, never a sum
      std::vector<float> line(static_cast<std::size_t>(end - begin));
      for (std::int64_t r = 0; r < rows; ++r) {
        loops_.load(static_cast<const T*>(dx) + r * width + begin, width, line.data(), 1, end - begin);
        const auto at = ids[r] * width + begin;
        if (d_type == Type::kFp32) shared.add(line.data(), static_cast<float*>(d_table) + at, end - begin);
        else shared.add_to_bf16(line.data(), static_cast<Bf16*>(d_table) + at, end - begin);
      }
    });
  }

  void cross_entropy(void* logits, const std::int32_t* targets, std::int64_t rows, std::int64_t vocabulary,
                     float* row_loss, const double* scale) override {
    over(rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r)
        row_loss[r] = loops_.cross_entropy(static_cast<T*>(logits) + r * vocabulary, vocabulary, targets[r],
                                           scale != nullptr, scale ? static_cast<float>(*scale) : 0.0f);
    });
  }

  void fill_zero(void* data, std::int64_t bytes) override {
    over(bytes, 1 << 20, [&](std::int64_t b, std::int64_t e) {
      std::memset(static_cast<char*>(data) + b, 0, static_cast<std::size_t>(e - b));
    });
  }
  void copy_to_device(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void copy_to_host(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

  void cast(const void* from, Type from_type, void* to, Type to_type, std::int64_t n) override {
    const auto& shared = table().shared;
    over(n, kGrain, [&](std::int64_t b, std::int64_t e) {
      const auto* source = static_cast<const char*>(from) + b * width_of(from_type);
      auto* target = static_cast<char*>(to) + b * width_of(to_type);
      if (from_type == to_type) std::memcpy(target, source, static_cast<std::size_t>((e - b) * width_of(to_type)));
      else if (to_type == Type::kBf16)
        shared.to_bf16(reinterpret_cast<const float*>(source), reinterpret_cast<Bf16*>(target), e - b);
      else shared.from_bf16(reinterpret_cast<const Bf16*>(source), reinterpret_cast<float*>(target), e - b);
    });
  }
  void add_cast(const void* from, Type from_type, void* to, Type to_type, std::int64_t n) override {
    const auto& shared = table().shared;
    over(n, kGrain, [&](std::int64_t b, std::int64_t e) {
      const auto* source = static_cast<const char*>(from) + b * width_of(from_type);
      auto* target = static_cast<char*>(to) + b * width_of(to_type);
      if (to_type == Type::kFp32) {
        if (from_type == Type::kFp32)
          shared.add(reinterpret_cast<const float*>(source), reinterpret_cast<float*>(target), e - b);
        else shared.add_from_bf16(reinterpret_cast<const Bf16*>(source), reinterpret_cast<float*>(target), e - b);
      } else if (from_type == Type::kFp32) {
        shared.add_to_bf16(reinterpret_cast<const float*>(source), reinterpret_cast<Bf16*>(target), e - b);
      } else {
        loops_of<Bf16>().add(reinterpret_cast<const Bf16*>(source), reinterpret_cast<const Bf16*>(target),
                             reinterpret_cast<Bf16*>(target), e - b);
      }
    });
  }

  double sum_of_squares(const void* data, Type data_type, std::int64_t n) override {
    return in_blocks(n, [&](std::int64_t begin, std::int64_t size) {
      return data_type == Type::kFp32 ? table().shared.square_sum(static_cast<const float*>(data) + begin, size)
                                      : table().shared.square_sum_bf16(static_cast<const Bf16*>(data) + begin, size);
    });
  }
  double sum(const float* data, std::int64_t n) override {
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += static_cast<double>(data[i]);
    return total;
  }

  void adamw(const AdamW& a, void* parameters, Type parameter_type, const void* gradients, Type gradient_type,
             void* exp_avg, void* exp_avg_sq, Type state_type, void* copy, Type copy_type, std::int64_t n) override {
    const auto step = static_cast<double>(a.step);
    const auto decay = static_cast<float>(1.0 - a.learning_rate * a.weight_decay);
    const auto rate = static_cast<float>(a.learning_rate / (1.0 - std::pow(a.beta1, step)));
    const auto root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(a.beta2, step)));
    const auto& shared = table().shared;
    auto update = [&](float* p, const float* g, float* m, float* v, std::int64_t size, Bf16* to) {
      shared.adamw(p, g, m, v, size, decay, rate, static_cast<float>(a.beta1), static_cast<float>(a.beta2), root,
                   static_cast<float>(a.epsilon), static_cast<float>(a.gradient_scale), to);
    };
    const bool plain = parameter_type == Type::kFp32 && gradient_type == Type::kFp32 && state_type == Type::kFp32 &&
                       (!copy || copy_type == Type::kBf16);
    over(n, 4 * kGrain, [&](std::int64_t begin, std::int64_t end) {
      if (plain) {
        update(static_cast<float*>(parameters) + begin, static_cast<const float*>(gradients) + begin,
               static_cast<float*>(exp_avg) + begin, static_cast<float*>(exp_avg_sq) + begin, end - begin,
               copy ? static_cast<Bf16*>(copy) + begin : nullptr);
        return;
      }
      constexpr std::int64_t kTile = 2048;
      alignas(64) float p[kTile], g[kTile], m[kTile], v[kTile];
      for (auto first = begin; first < end; first += kTile) {
        const auto size = std::min(kTile, end - first);
        widen(parameters, parameter_type, first, p, size);
        widen(gradients, gradient_type, first, g, size);
        widen(exp_avg, state_type, first, m, size);
        widen(exp_avg_sq, state_type, first, v, size);
        update(p, g, m, v, size, nullptr);
        narrow(p, parameters, parameter_type, first, size);
        narrow(m, exp_avg, state_type, first, size);
        narrow(v, exp_avg_sq, state_type, first, size);
        if (copy) narrow(p, copy, copy_type, first, size);
      }
    });
  }

 private:
  void rms(const NormShape& s, const void* x, const void* w, void* y, float* stats, bool keep) {
    over(s.rows, row_grain(s.width), [&](std::int64_t begin, std::int64_t end) {
      const auto at = begin * s.width;
      loops_.rms_norm(static_cast<const T*>(x) + at, static_cast<const T*>(w), static_cast<T*>(y) + at, stats + begin,
                      keep, end - begin, s.width, static_cast<float>(s.epsilon));
    });
  }
  void layer(const NormShape& s, const void* x, const void* w, const void* b, void* y, float* stats, bool keep) {
    over(s.rows, row_grain(s.width), [&](std::int64_t begin, std::int64_t end) {
      const auto at = begin * s.width;
      loops_.layer_norm(static_cast<const T*>(x) + at, static_cast<const T*>(w), static_cast<const T*>(b),
                        static_cast<T*>(y) + at, stats + 2 * begin, keep, end - begin, s.width,
                        static_cast<float>(s.epsilon));
    });
  }
  void put_columns(const float* sums, void* to, Type to_type, bool accumulate, std::int64_t n) {
    if (accumulate) add_cast(sums, Type::kFp32, to, to_type, n);
    else cast(sums, Type::kFp32, to, to_type, n);
  }
  template <typename Work>
  void column_results(std::int64_t width, void* to, Type to_type, bool accumulate, const Work& work) {
    std::vector<float> sums(static_cast<std::size_t>(width));
    over(width, kColumnGrain, [&](std::int64_t begin, std::int64_t end) { work(sums.data(), begin, end); });
    put_columns(sums.data(), to, to_type, accumulate, width);
  }
  template <typename Part>
  static double in_blocks(std::int64_t n, const Part& part) {
    const auto blocks = (n + kBlock - 1) / kBlock;
    std::vector<double> partial(static_cast<std::size_t>(blocks));
    over(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto b = begin; b < end; ++b)
        partial[static_cast<std::size_t>(b)] = part(b * kBlock, std::min(kBlock, n - b * kBlock));
    });
    double total = 0;
    for (double one : partial) total += one;
    return total;
  }
  static void widen(const void* from, Type from_type, std::int64_t first, float* to, std::int64_t n) {
    if (from_type == Type::kFp32)
      std::memcpy(to, static_cast<const float*>(from) + first, static_cast<std::size_t>(n) * sizeof(float));
    else table().shared.from_bf16(static_cast<const Bf16*>(from) + first, to, n);
  }
  static void narrow(const float* from, void* to, Type to_type, std::int64_t first, std::int64_t n) {
    if (to_type == Type::kFp32)
      std::memcpy(static_cast<float*>(to) + first, from, static_cast<std::size_t>(n) * sizeof(float));
    else table().shared.to_bf16(from, static_cast<Bf16*>(to) + first, n);
  }

  const Loops<T>& loops_;
};

}  // namespace

std::uint64_t mix(std::uint64_t key, std::uint64_t position) {  // SplitMix64's finisher over key and place
  std::uint64_t x = key + 0x9e3779b97f4a7c15ULL * (position + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::unique_ptr<Kernels> make_cpu_kernels(Type type) {
  if (type == Type::kFp32) return std::make_unique<Cpu<float>>();
  return std::make_unique<Cpu<Bf16>>();
}

}  // namespace shardfit::kernels
