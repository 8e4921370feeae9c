// AdamW of the CPU kernels beside LibTorch's fused one, a plain loop of LibTorch operators, and memcpy.
//   optimizer_bench [MILLIONS] [ROUNDS]      parameters (default 64), fp32; rounds (default 9)
// Each round runs all of them one after another, so that a loaded machine loads all alike; ratios are of the medians,
// and the spread (quartiles of the paired ratios) says how far to trust them. Threads: OMP_NUM_THREADS.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "runtime/kernels/kernels.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Contender {
  const char* name;
  double bytes;  // moved a parameter
  std::function<void()> work;
  std::vector<double> took = {};
};

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t n = (argc > 1 ? std::max(1, std::atoi(argv[1])) : 64) * std::int64_t{1 << 20};
  const int rounds = argc > 2 ? std::max(3, std::atoi(argv[2])) : 9;
  using namespace shardfit;
  auto kernels = kernels::make_cpu_kernels(kernels::Type::kFp32);
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  auto p = at::randn({n}, fp32), g = at::randn({n}, fp32), m = at::zeros({n}, fp32), v = at::full({n}, 0.1, fp32);
  auto copy = at::zeros({n}, fp32.dtype(at::kBFloat16));
  constexpr double rate = 1e-4, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;
  const kernels::AdamW settings{rate, beta1, beta2, epsilon, decay, 10, 1};
  std::vector<at::Tensor> ps{p}, gs{g}, ms{m}, vs{v}, steps{at::full({}, 10.0, fp32)};
  using kernels::Type;
  std::vector<Contender> all;
  all.push_back({"ours", 28, [&] {
                   kernels->adamw(settings, p.data_ptr(), Type::kFp32, g.data_ptr(), Type::kFp32, m.data_ptr(),
                                  v.data_ptr(), Type::kFp32, nullptr, Type::kFp32, n);
                 }});
  all.push_back({"torch fused", 28, [&] {
                   at::_fused_adamw_(ps, gs, ms, vs, {}, steps, rate, beta1, beta2, decay, epsilon, false, false);
                 }});
  all.push_back({"torch operators", 28, [&] {
                   p.mul_(1 - rate * decay);
                   m.mul_(beta1).add_(g, 1 - beta1);
                   v.mul_(beta2).addcmul_(g, g, 1 - beta2);
                   p.addcdiv_(m, v.sqrt().add_(epsilon), -rate);
                 }});
  all.push_back({"ours, bf16 written", 30, [&] {
                   kernels->adamw(settings, p.data_ptr(), Type::kFp32, g.data_ptr(), Type::kFp32, m.data_ptr(),
                                  v.data_ptr(), Type::kFp32, copy.data_ptr(), Type::kBf16, n);
                 }});
  all.push_back({"torch fused, copied", 34, [&] {
                   at::_fused_adamw_(ps, gs, ms, vs, {}, steps, rate, beta1, beta2, decay, epsilon, false, false);
                   copy.copy_(p);
                 }});
  all.push_back({"memcpy", 8, [&] {
                   at::parallel_for(0, n, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
                     std::memcpy(m.data_ptr<float>() + begin, g.data_ptr<float>() + begin,
                                 static_cast<std::size_t>(end - begin) * 4);
                   });
                 }});
  for (auto& c : all) c.work();
  for (int round = 0; round < rounds; ++round)
    for (auto& c : all) c.took.push_back(seconds(c.work));
  fmt::print("{} Mi parameters, {} threads, {} rounds\n", n >> 20, at::get_num_threads(), rounds);
  for (const auto& c : all) {
    const double median = quantile(c.took, 0.5);
    fmt::print("{:<20} {:8.1f} ms  {:7.0f} Mparam/s  {:5.1f} GB/s\n", c.name, 1e3 * median,
               static_cast<double>(n) / 1e6 / median, c.bytes * static_cast<double>(n) / 1e9 / median);
  }
  const auto ratio = [&](std::size_t ours, std::size_t other) {
    std::vector<double> ratios;
    for (int i = 0; i < rounds; ++i)
      ratios.push_back(all[other].took[static_cast<std::size_t>(i)] / all[ours].took[static_cast<std::size_t>(i)]);
    fmt::print("{} against {}: {:.2f} times as fast (quartiles {:.2f} to {:.2f})\n", all[ours].name, all[other].name,
               quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75));
  };
  ratio(0, 1);
  ratio(0, 2);
  ratio(3, 4);
  const double ours = 28 / quantile(all[0].took, 0.5), copied = 8 / quantile(all[5].took, 0.5);
  fmt::print("bandwidth of ours against memcpy: {:.2f}\n", ours / copied);
}
