#include "runtime/kernels/gemm.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <limits>

// BLAS as libtorch_cpu exports it where it was built with MKL: without the cost of LibTorch's dispatcher.
extern "C" void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                       const float* beta, float* c, const int* ldc) __attribute__((weak));

namespace shardfit::kernels {
namespace {

bool is_int(std::int64_t n) { return n <= std::numeric_limits<int>::max(); }

at::Tensor matrix(const void* data, at::ScalarType type, bool transposed, std::int64_t rows, std::int64_t columns,
                  std::int64_t stride) {
  // from_blob takes no const memory; operands are only read.
  auto* memory = const_cast<void*>(data);
  return transposed ? at::from_blob(memory, {rows, columns}, {1, stride}, at::TensorOptions().dtype(type))
                    : at::from_blob(memory, {rows, columns}, {stride, 1}, at::TensorOptions().dtype(type));
}

}  // namespace

void gemm(Type type, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
          std::int64_t lda, const void* b, std::int64_t ldb, bool accumulate, void* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (type == Type::kFp32 && sgemm_ && is_int(m) && is_int(n) && is_int(k) && is_int(lda) && is_int(ldb) &&
      is_int(ldc)) {
    // Column-major BLAS sees every row-major matrix transposed: c^T = b'^T a'^T.
    const char first = transpose_b ? 'T' : 'N', second = transpose_a ? 'T' : 'N';
    const int rows = static_cast<int>(n), columns = static_cast<int>(m), inner = static_cast<int>(k);
    const int stride_b = static_cast<int>(ldb), stride_a = static_cast<int>(lda), stride_c = static_cast<int>(ldc);
    const float one = 1, beta = accumulate ? 1.0f : 0.0f;
    sgemm_(&first, &second, &rows, &columns, &inner, &one, static_cast<const float*>(b), &stride_b,
           static_cast<const float*>(a), &stride_a, &beta, static_cast<float*>(c), &stride_c);
    return;
  }
  const c10::InferenceMode no_autograd;
  const auto scalar = type == Type::kFp32 ? at::kFloat : at::kBFloat16;
  const auto left = matrix(a, scalar, transpose_a, m, k, lda), right = matrix(b, scalar, transpose_b, k, n, ldb);
  auto out = matrix(c, scalar, false, m, n, ldc);
  if (accumulate) at::addmm_out(out, out, left, right);
  else at::mm_out(out, left, right);
}

}  // namespace shardfit::kernels
