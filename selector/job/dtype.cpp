#include "selector/job/dtype.hpp"

#include <array>
#include <utility>
#include <vector>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"

namespace shardfit::job {

namespace {
struct Row {
  DType type;
  std::string_view name;
  double bytes;
};
constexpr std::array<Row, 9> kTypes = {{{DType::kNone, "none", 0},
                                        {DType::kFp32, "fp32", 4},
                                        {DType::kBf16, "bf16", 2},
                                        {DType::kFp16, "fp16", 2},
                                        {DType::kFp8, "fp8", 1},
                                        {DType::kInt8, "int8", 1},
                                        {DType::kInt4, "int4", 0.5},
                                        {DType::kNf4, "nf4", 0.5},
                                        {DType::kUint8, "uint8", 1}}};
}  // namespace

double bytes_of(DType type) {
  for (const auto& row : kTypes)
    if (row.type == type) return row.bytes;
  return 0;
}

std::string_view name_of(DType type) {
  for (const auto& row : kTypes)
    if (row.type == type) return row.name;
  return "none";
}

DType parse_dtype(std::string_view name, const std::string& where) {
  std::vector<std::string> known;
  for (const auto& row : kTypes) {
    if (row.name == name) return row.type;
    known.emplace_back(row.name);
  }
  const auto near = nearest(name, known);
  throw Error("unknown_word", where, "\"" + std::string(name.substr(0, 60)) + "\" is not a number format",
              (near ? "did you mean \"" + *near + "\"? " : std::string()) + "Known: " + join(known, ", "));
}

}  // namespace shardfit::job
