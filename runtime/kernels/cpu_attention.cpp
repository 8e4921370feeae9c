// The online softmax of FlashAttention (Dao et al. 2022, algorithm 1) with tiles of 64 queries by 512 keys, each
// product a small matrix product; backward recomputes the probabilities from the kept log-sums. Work is shared out by
// (sample, key-value head): then no two threads add to the same gradient, and the order of sums does not depend on the
// number of threads.
#include "runtime/kernels/cpu_attention.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "runtime/kernels/gemm.hpp"

namespace shardfit::kernels {
namespace {

// Hands out a worker's areas of its scratch one after another.
class Scratch {
 public:
  Scratch(void* base, std::int64_t worker, std::int64_t bytes)
      : next_(reinterpret_cast<float*>(static_cast<char*>(base) + worker * bytes)) {}
  float* take(std::int64_t elements) {
    float* area = next_;
    next_ += elements;
    return area;
  }

 private:
  float* next_;
};

// Rows of one head as fp32: the memory itself, or a dense copy.
struct Rows {
  const float* data;
  std::int64_t stride;
};
Rows rows_of(const float* from, std::int64_t stride, float*, std::int64_t, std::int64_t) { return {from, stride}; }
Rows rows_of(const Bf16* from, std::int64_t stride, float* copy, std::int64_t rows, std::int64_t width) {
  loops_of<Bf16>().load(from, stride, copy, rows, width);
  return {copy, width};
}

void product(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
             const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc) {
  gemm(Type::kFp32, ta, tb, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
}

struct Task {
  std::int64_t document_begin = 0, document_end = 0;  // indices into the documents: those of one sample
  std::int64_t kv_head = 0;
};

// Calls work(task, worker) for every task, on at most `workers` threads.
template <typename Work>
void share_out(const AttentionShape& shape, const Work& work) {
  std::vector<Task> tasks;
  const auto documents = static_cast<std::int64_t>(shape.documents.size());
  for (std::int64_t first = 0; first < documents;) {
    auto last = first + 1;
    const auto sample =
        shape.documents[static_cast<std::size_t>(first)].begin / std::max<std::int64_t>(shape.sequence, 1);
    while (last < documents &&
           shape.documents[static_cast<std::size_t>(last)].begin / std::max<std::int64_t>(shape.sequence, 1) == sample)
      ++last;
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) tasks.push_back({first, last, head});
    first = last;
  }
  std::atomic<std::size_t> next{0};
  const auto threads = std::min<std::int64_t>(std::min<std::int64_t>(at::get_num_threads(), shape.workers),
                                              static_cast<std::int64_t>(tasks.size()));
  at::parallel_for(0, std::max<std::int64_t>(threads, 1), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto worker = begin; worker < end; ++worker)
      for (auto i = next++; i < tasks.size(); i = next++) work(tasks[i], worker);
  });
}

std::int64_t first_key_of(const AttentionShape& shape, std::int64_t query) {
  return shape.window ? std::max<std::int64_t>(query - *shape.window + 1, 0) / kKeyTile * kKeyTile : 0;
}

// Multiplies a tile of probabilities (or their gradient) by the dropout mask of its places.
void drop_tile(const AttentionShape& shape, const Document& document, std::int64_t head, float* tile, std::int64_t rows,
               std::int64_t columns, std::int64_t first_query, std::int64_t first_key) {
  const auto limit = drop_limit(shape.dropout.probability);
  const auto keep = static_cast<float>(1.0 / (1.0 - shape.dropout.probability));
  const auto key =
      mix(mix(shape.dropout.key, static_cast<std::uint64_t>(document.sample)), static_cast<std::uint64_t>(head));
  const auto base = document.begin % std::max<std::int64_t>(shape.sequence, 1);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto place = (base + first_query + r) * shape.sequence + base + first_key + c;
      float& value = tile[r * columns + c];
      value = mix(key, static_cast<std::uint64_t>(place)) < limit ? 0.0f : value * keep;
    }
}

// Rows of no document: zero, so that what is computed from them is finite.
template <typename T>
void clear_gaps(const AttentionShape& shape, T* x, std::int64_t row, std::int64_t width) {
  std::int64_t from = 0;
  auto clear = [&](std::int64_t until) {
    for (auto r = from; r < until; ++r)
      std::memset(static_cast<void*>(x + r * row), 0, static_cast<std::size_t>(width) * sizeof(T));
  };
  for (const auto& document : shape.documents) {
    clear(document.begin);
    from = document.end;
  }
  clear(shape.rows);
}

}  // namespace

std::uint64_t drop_limit(double probability) {
  return static_cast<std::uint64_t>(std::min(probability, 1.0) * 18446744073709549568.0);
}

template <typename T>
void attention_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* out, float* log_sum,
                       void* tiles) {
  const auto dim = shape.head_dim, group = shape.heads / shape.kv_heads, window = shape.window.value_or(0);
  const auto& shared = loops().shared;
  clear_gaps(shape, out, shape.row_out, shape.heads * dim);
  share_out(shape, [&](const Task& task, std::int64_t worker) {
    Scratch scratch(tiles, worker, shape.tile_bytes);
    const auto keys = std::min(kKeyTile, shape.sequence);
    float* scores = scratch.take(kQueryTile * keys);
    scratch.take(kQueryTile * keys);
    float* result = scratch.take(kQueryTile * dim);
    float *maxima = scratch.take(kQueryTile), *sums = scratch.take(kQueryTile), *rescale = scratch.take(kQueryTile);
    float *q_copy = nullptr, *k_copy = nullptr, *v_copy = nullptr;
    if constexpr (!std::is_same_v<T, float>) {
      q_copy = scratch.take(2 * kQueryTile * dim);
      k_copy = scratch.take(keys * dim);
      v_copy = scratch.take(keys * dim);
    }
    for (auto d = task.document_begin; d < task.document_end; ++d) {
      const auto& document = shape.documents[static_cast<std::size_t>(d)];
      const auto length = document.end - document.begin;
      const T* k_head = k + document.begin * shape.row_k + task.kv_head * dim;
      const T* v_head = v + document.begin * shape.row_v + task.kv_head * dim;
      for (auto head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
        const T* q_head = q + document.begin * shape.row_q + head * dim;
        for (std::int64_t i = 0; i < length; i += kQueryTile) {
          const auto rows = std::min(kQueryTile, length - i);
          const auto q_rows = rows_of(q_head + i * shape.row_q, shape.row_q, q_copy, rows, dim);
          std::fill_n(maxima, rows, -std::numeric_limits<float>::infinity());
          std::fill_n(sums, rows, 0.0f);
          bool first = true;
          for (auto j = first_key_of(shape, i); j < i + rows; j += kKeyTile) {
            const auto columns = std::min(kKeyTile, i + rows - j);
            const auto k_rows = rows_of(k_head + j * shape.row_k, shape.row_k, k_copy, columns, dim);
            const auto v_rows = rows_of(v_head + j * shape.row_v, shape.row_v, v_copy, columns, dim);
            product(false, true, rows, columns, dim, q_rows.data, q_rows.stride, k_rows.data, k_rows.stride, false,
                    scores, columns);
            shared.softmax_tile(scores, rows, columns, i, j, window, static_cast<float>(shape.scale), maxima, sums,
                                rescale);
            if (shape.dropout.probability > 0) drop_tile(shape, document, head, scores, rows, columns, i, j);
            if (!first) shared.scale_rows(result, rows, dim, rescale, false);
            product(false, false, rows, dim, columns, scores, columns, v_rows.data, v_rows.stride, !first, result, dim);
            first = false;
          }
          shared.scale_rows(result, rows, dim, sums, true);
          loops_of<T>().store(result, out + (document.begin + i) * shape.row_out + head * dim, shape.row_out, rows,
                              dim);
          for (std::int64_t r = 0; r < rows; ++r)
            log_sum[(document.begin + i + r) * shape.heads + head] = maxima[r] + std::log(sums[r]);
        }
      }
    }
  });
}

template <typename T>
void attention_backward(const AttentionShape& shape, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                        const float* log_sum, float* delta, T* dq, T* dk, T* dv, void* tiles) {
  const auto dim = shape.head_dim, group = shape.heads / shape.kv_heads, window = shape.window.value_or(0);
  const auto& shared = loops().shared;
  const auto& own = loops_of<T>();
  clear_gaps(shape, dq, shape.row_q, shape.heads * dim);
  clear_gaps(shape, dk, shape.row_k, shape.kv_heads * dim);
  clear_gaps(shape, dv, shape.row_v, shape.kv_heads * dim);
  share_out(shape, [&](const Task& task, std::int64_t worker) {
    Scratch scratch(tiles, worker, shape.tile_bytes);
    const auto keys = std::min(kKeyTile, shape.sequence);
    float* scores = scratch.take(kQueryTile * keys);
    float* gradient = scratch.take(kQueryTile * keys);
    float* dq_tile = scratch.take(kQueryTile * dim);
    scratch.take(3 * kQueryTile);
    float *q_copy = nullptr, *do_copy = nullptr, *k_copy = nullptr, *v_copy = nullptr, *dk_sum = nullptr,
          *dv_sum = nullptr;
    if constexpr (!std::is_same_v<T, float>) {
      q_copy = scratch.take(kQueryTile * dim);
      do_copy = scratch.take(kQueryTile * dim);
      k_copy = scratch.take(keys * dim);
      v_copy = scratch.take(keys * dim);
      dk_sum = scratch.take(shape.sequence * dim);
      dv_sum = scratch.take(shape.sequence * dim);
    }
    for (auto d = task.document_begin; d < task.document_end; ++d) {
      const auto& document = shape.documents[static_cast<std::size_t>(d)];
      const auto length = document.end - document.begin;
      const auto base = document.begin;
      const T* k_head = k + base * shape.row_k + task.kv_head * dim;
      const T* v_head = v + base * shape.row_v + task.kv_head * dim;
      T* dk_head = dk + base * shape.row_k + task.kv_head * dim;
      T* dv_head = dv + base * shape.row_v + task.kv_head * dim;
      // fp32 sums of this head's key and value gradients: in place, or beside.
      float *dk_at, *dv_at;
      std::int64_t dk_stride, dv_stride;
      if constexpr (std::is_same_v<T, float>) {
        dk_at = dk_head, dv_at = dv_head, dk_stride = shape.row_k, dv_stride = shape.row_v;
      } else {
        dk_at = dk_sum, dv_at = dv_sum, dk_stride = dv_stride = dim;
      }
      for (std::int64_t r = 0; r < length; ++r) {
        std::memset(dk_at + r * dk_stride, 0, static_cast<std::size_t>(dim) * sizeof(float));
        std::memset(dv_at + r * dv_stride, 0, static_cast<std::size_t>(dim) * sizeof(float));
      }
      for (auto head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
        const T* q_head = q + base * shape.row_q + head * dim;
        const T* do_head = d_out + base * shape.row_out + head * dim;
        own.row_dot(do_head, out + base * shape.row_out + head * dim, delta + base * shape.heads + head, shape.heads,
                    length, shape.row_out, dim);
        for (std::int64_t i = 0; i < length; i += kQueryTile) {
          const auto rows = std::min(kQueryTile, length - i);
          const auto q_rows = rows_of(q_head + i * shape.row_q, shape.row_q, q_copy, rows, dim);
          const auto do_rows = rows_of(do_head + i * shape.row_out, shape.row_out, do_copy, rows, dim);
          const auto place = (base + i) * shape.heads + head;
          bool first = true;
          for (auto j = first_key_of(shape, i); j < i + rows; j += kKeyTile) {
            const auto columns = std::min(kKeyTile, i + rows - j);
            const auto k_rows = rows_of(k_head + j * shape.row_k, shape.row_k, k_copy, columns, dim);
            const auto v_rows = rows_of(v_head + j * shape.row_v, shape.row_v, v_copy, columns, dim);
            product(false, true, rows, columns, dim, q_rows.data, q_rows.stride, k_rows.data, k_rows.stride, false,
                    scores, columns);
            shared.probability_tile(scores, rows, columns, i, j, window, static_cast<float>(shape.scale),
                                    log_sum + place, shape.heads);
            product(false, true, rows, columns, dim, do_rows.data, do_rows.stride, v_rows.data, v_rows.stride, false,
                    gradient, columns);
            if (shape.dropout.probability > 0) drop_tile(shape, document, head, gradient, rows, columns, i, j);
            shared.score_gradient_tile(scores, gradient, rows, columns, delta + place, shape.heads,
                                       static_cast<float>(shape.scale));
            if (shape.dropout.probability > 0) drop_tile(shape, document, head, scores, rows, columns, i, j);
            product(true, false, columns, dim, rows, scores, columns, do_rows.data, do_rows.stride, true,
                    dv_at + j * dv_stride, dv_stride);
            product(true, false, columns, dim, rows, gradient, columns, q_rows.data, q_rows.stride, true,
                    dk_at + j * dk_stride, dk_stride);
            product(false, false, rows, dim, columns, gradient, columns, k_rows.data, k_rows.stride, !first, dq_tile,
                    dim);
            first = false;
          }
          own.store(dq_tile, dq + (base + i) * shape.row_q + head * dim, shape.row_q, rows, dim);
        }
      }
      if constexpr (!std::is_same_v<T, float>) {
        own.store(dk_sum, dk_head, shape.row_k, length, dim);
        own.store(dv_sum, dv_head, shape.row_v, length, dim);
      }
    }
  });
}

template void attention_forward<float>(const AttentionShape&, const float*, const float*, const float*, float*, float*,
                                       void*);
template void attention_forward<Bf16>(const AttentionShape&, const Bf16*, const Bf16*, const Bf16*, Bf16*, float*,
                                      void*);
template void attention_backward<float>(const AttentionShape&, const float*, const float*, const float*, const float*,
                                        const float*, const float*, float*, float*, float*, float*, void*);
template void attention_backward<Bf16>(const AttentionShape&, const Bf16*, const Bf16*, const Bf16*, const Bf16*,
                                       const Bf16*, const float*, float*, Bf16*, Bf16*, Bf16*, void*);

}  // namespace shardfit::kernels
