// Number formats by the names of the job and plan files.
#pragma once
#include <string>
#include <string_view>

namespace shardfit::job {

enum class DType { kNone, kFp32, kBf16, kFp16, kFp8, kInt8, kInt4, kNf4, kUint8 };

double bytes_of(DType type);           // bytes an element: fp32 4, bf16/fp16 2, fp8/int8/uint8 1, int4/nf4 0.5, none 0
std::string_view name_of(DType type);  // "fp32", ..., "none"
DType parse_dtype(std::string_view name,
                  const std::string& where);  // throws Error{unknown_word} listing the known names

}  // namespace shardfit::job
