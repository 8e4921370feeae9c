// Row-major matrix products over plain memory, by LibTorch's library (MKL or another BLAS for fp32, oneDNN for bf16).
#pragma once
#include <cstdint>

#include "runtime/kernels/kernels.hpp"

namespace shardfit::kernels {

// c[m, n] = a' b' (+ c), where a' = a[m, k] or, transposed, a[k, m]^T, and b' = b[k, n] or b[n, k]^T. lda, ldb, ldc:
// elements from one stored row to the next. Safe inside a parallel region (then on one thread).
void gemm(Type type, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
          std::int64_t lda, const void* b, std::int64_t ldb, bool accumulate, void* c, std::int64_t ldc);

}  // namespace shardfit::kernels
