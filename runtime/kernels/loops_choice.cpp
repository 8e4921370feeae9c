#include "runtime/kernels/loops.hpp"

namespace shardfit::kernels {

extern const LoopTable kLoops_v2;
#ifdef __x86_64__
extern const LoopTable kLoops_v3, kLoops_v4;
#endif

const LoopTable& loops() {
#ifdef __x86_64__
  static const LoopTable& chosen = [&]() -> const LoopTable& {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return kLoops_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
      return kLoops_v3;
    return kLoops_v2;
  }();
  return chosen;
#else
  return kLoops_v2;
#endif
}

}  // namespace shardfit::kernels
