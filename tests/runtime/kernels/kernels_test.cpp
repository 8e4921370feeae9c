// Kernels against plain references in fp64, at sizes that do not divide tiles and vectors; gradients against those of
// the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/kernels/cpu_attention.hpp"
#include "runtime/kernels/kernels.hpp"
#include "runtime/kernels/loops.hpp"
#include "selector/schedule/activations.hpp"

namespace shardfit::kernels {
extern const LoopTable kLoops_v2;
#ifdef __x86_64__
extern const LoopTable kLoops_v3, kLoops_v4;
#endif
namespace {

std::vector<float> numbers(std::size_t n, std::uint64_t seed, double scale = 1) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = static_cast<float>((static_cast<double>(mix(seed, i) >> 11) / 9007199254740992.0 * 2 - 1) * scale);
  return out;
}

double worst(const std::vector<float>& have, const std::vector<double>& want) {
  EXPECT_EQ(have.size(), want.size());
  double most = 0;
  for (std::size_t i = 0; i < have.size(); ++i)
    most = std::max(most, std::fabs(static_cast<double>(have[i]) - want[i]));
  return most;
}

struct Case {
  std::int64_t heads, kv_heads, dim, sequence;
  std::vector<Document> documents;
  std::int64_t window = 0;  // 0 = none
  double dropout = 0;
  std::int64_t rows = 0;  // 0 = sequence
};

// Attention and its gradients written out, pair by pair.
struct Reference {
  std::vector<double> out, dq, dk, dv;
  Reference(const Case& c, const Dropout& dropout, const std::vector<float>& q, const std::vector<float>& k,
            const std::vector<float>& v, const std::vector<float>& d_out) {
    const auto hd = c.heads * c.dim, kd = c.kv_heads * c.dim, rows = c.rows ? c.rows : c.sequence;
    out.assign(static_cast<std::size_t>(rows * hd), 0), dq = out;
    dk.assign(static_cast<std::size_t>(rows * kd), 0), dv = dk;
    const double scale = 1 / std::sqrt(static_cast<double>(c.dim)), keep = 1 / (1 - c.dropout);
    for (const auto& d : c.documents)
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const auto key = mix(mix(dropout.key, static_cast<std::uint64_t>(d.sample)), static_cast<std::uint64_t>(h));
        const auto g = h / (c.heads / c.kv_heads);
        for (auto i = d.begin; i < d.end; ++i) {
          const auto first = c.window ? std::max(d.begin, i - c.window + 1) : d.begin;
          std::vector<double> p, mask, dp;
          double sum = 0;
          for (auto j = first; j <= i; ++j) {
            double s = 0;
            for (std::int64_t x = 0; x < c.dim; ++x)
              s += static_cast<double>(q[at(i, hd, h, c.dim, x)]) * static_cast<double>(k[at(j, kd, g, c.dim, x)]);
            p.push_back(std::exp(s * scale));
            sum += p.back();
            const auto place = (i % c.sequence) * c.sequence + j % c.sequence;
            mask.push_back(c.dropout > 0 && mix(key, static_cast<std::uint64_t>(place)) < drop_limit(c.dropout) ? 0
                           : c.dropout > 0                                                                      ? keep
                                                                                                                : 1);
          }
          double delta = 0;
          for (std::size_t n = 0; n < p.size(); ++n) {
            p[n] /= sum;
            const auto j = first + static_cast<std::int64_t>(n);
            double gradient = 0;
            for (std::int64_t x = 0; x < c.dim; ++x) {
              const double value = static_cast<double>(v[at(j, kd, g, c.dim, x)]),
                           d_value = static_cast<double>(d_out[at(i, hd, h, c.dim, x)]);
              out[at(i, hd, h, c.dim, x)] += p[n] * mask[n] * value;
              dv[at(j, kd, g, c.dim, x)] += p[n] * mask[n] * d_value;
              gradient += d_value * value * mask[n];
            }
            dp.push_back(gradient);
            delta += gradient * p[n];
          }
          for (std::size_t n = 0; n < p.size(); ++n) {
            const auto j = first + static_cast<std::int64_t>(n);
            const double ds = p[n] * (dp[n] - delta) * scale;
            for (std::int64_t x = 0; x < c.dim; ++x) {
              dq[at(i, hd, h, c.dim, x)] += ds * static_cast<double>(k[at(j, kd, g, c.dim, x)]);
              dk[at(j, kd, g, c.dim, x)] += ds * static_cast<double>(q[at(i, hd, h, c.dim, x)]);
            }
          }
        }
      }
  }
  static std::size_t at(std::int64_t row, std::int64_t width, std::int64_t head, std::int64_t dim, std::int64_t x) {
    return static_cast<std::size_t>(row * width + head * dim + x);
  }
};

class Attention : public testing::TestWithParam<std::tuple<Case, Type, bool>> {};

TEST_P(Attention, ForwardAndGradientsEqualTheReference) {
  const auto& [c, type, own] = GetParam();
  const auto kernels = own ? make_cpu_kernels(type) : make_aten_kernels(type, -1);
  const auto rows = c.rows ? c.rows : c.sequence, hd = c.heads * c.dim, kd = c.kv_heads * c.dim;
  auto round = [&, type = type](std::vector<float> x) {  // as the kernels see it
    if (type == Type::kBf16) {
      std::vector<std::uint16_t> narrow(x.size());
      kernels->cast(x.data(), Type::kFp32, narrow.data(), Type::kBf16, static_cast<std::int64_t>(x.size()));
      kernels->cast(narrow.data(), Type::kBf16, x.data(), Type::kFp32, static_cast<std::int64_t>(x.size()));
    }
    return x;
  };
  const auto q = round(numbers(static_cast<std::size_t>(rows * hd), 1, 2)),
             k = round(numbers(static_cast<std::size_t>(rows * kd), 2, 2));
  const auto v = round(numbers(static_cast<std::size_t>(rows * kd), 3)),
             d_out = round(numbers(static_cast<std::size_t>(rows * hd), 4));
  const Dropout dropout{c.dropout, 99};
  const Reference want(c, dropout, q, k, v, d_out);

  schedule::Sizes sizes;
  sizes.geometry.head_dim = c.dim;
  sizes.sequence = c.sequence;
  sizes.precision.compute = type == Type::kFp32 ? job::DType::kFp32 : job::DType::kBf16;
  const auto tile = schedule::attention_tile_bytes(sizes);
  // A guard behind the tiles shows whether the kernel stays within what the schedule gives it.
  std::vector<char> tiles(static_cast<std::size_t>(2 * tile + 64), 0x5a);
  AttentionShape shape{.heads = c.heads,
                       .kv_heads = c.kv_heads,
                       .head_dim = c.dim,
                       .row_q = hd,
                       .row_k = kd,
                       .row_v = kd,
                       .row_out = hd,
                       .scale = 1 / std::sqrt(static_cast<double>(c.dim)),
                       .documents = c.documents,
                       .rows = rows,
                       .sequence = c.sequence,
                       .dropout = dropout,
                       .workers = 2,
                       .tile_bytes = tile};
  if (c.window) shape.window = c.window;
  auto memory = [&, type = type](const std::vector<float>& x) {
    std::vector<char> bytes(x.size() * static_cast<std::size_t>(width_of(type)));
    kernels->cast(x.data(), Type::kFp32, bytes.data(), type, static_cast<std::int64_t>(x.size()));
    return bytes;
  };
  auto back = [&, type = type](const std::vector<char>& bytes) {
    std::vector<float> x(bytes.size() / static_cast<std::size_t>(width_of(type)));
    kernels->cast(bytes.data(), type, x.data(), Type::kFp32, static_cast<std::int64_t>(x.size()));
    return x;
  };
  const auto q_in = memory(q), k_in = memory(k), v_in = memory(v), do_in = memory(d_out);
  auto out = memory(numbers(q.size(), 5)), dq = out, dk = memory(numbers(k.size(), 6)),
       dv = dk;  // garbage that must be overwritten
  std::vector<float> log_sum(static_cast<std::size_t>(rows * c.heads)), delta(log_sum.size());
  kernels->attention(shape, q_in.data(), k_in.data(), v_in.data(), out.data(), log_sum.data(), tiles.data());
  kernels->attention_backward(shape, q_in.data(), k_in.data(), v_in.data(), out.data(), do_in.data(), log_sum.data(),
                              delta.data(), dq.data(), dk.data(), dv.data(), tiles.data());
  const double tolerance = type == Type::kFp32 ? 2e-5 : 4e-2;
  EXPECT_LT(worst(back(out), want.out), tolerance);
  EXPECT_LT(worst(back(dq), want.dq), tolerance);
  EXPECT_LT(worst(back(dk), want.dk), 4 * tolerance);
  EXPECT_LT(worst(back(dv), want.dv), 4 * tolerance);
  EXPECT_EQ(std::count(tiles.end() - 64, tiles.end(), 0x5a), 64);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    testing::Combine(
        testing::Values(Case{2, 2, 16, 130, {{0, 130, 0}}},   // three tiles of queries
                        Case{4, 2, 4, 1050, {{0, 1050, 3}}},  // three tiles of keys, grouped heads
                        Case{3, 1, 12, 700, {{0, 5, 1}, {5, 600, 1}, {600, 690, 1}}},  // documents, padding behind them
                        Case{2, 1, 4, 600, {{0, 600, 0}}, 70},                         // sliding window within a tile
                        Case{1, 1, 4, 1250, {{0, 1250, 0}}, 600},                      // and across tiles
                        Case{2, 2, 8, 140, {{0, 140, 5}}, 0, 0.3},                     // dropout
                        Case{2, 1, 8, 50, {{0, 50, 7}, {50, 60, 8}, {60, 95, 8}}, 0, 0.2, 150}),  // three samples, the
                                                                                                  // last one empty
        testing::Values(Type::kFp32, Type::kBf16), testing::Bool()));

// All instruction sets that this processor has give what the plain one gives.
TEST(Loops, InstructionSetsAgree) {
  std::vector<const LoopTable*> tables;
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&kLoops_v3);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    tables.push_back(&kLoops_v4);
#endif
  const std::int64_t n = 1003;
  const auto a = numbers(n, 1, 6), b = numbers(n, 2, 2);
  for (const auto* table : tables) {
    std::vector<float> one(n), two(n);
    kLoops_v2.fp32.swiglu(a.data(), b.data(), one.data(), n);
    table->fp32.swiglu(a.data(), b.data(), two.data(), n);
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(one[i], two[i], 1e-6 * (1 + std::fabs(one[i]))) << table->name;
    kLoops_v2.fp32.gelu(a.data(), one.data(), n);
    table->fp32.gelu(a.data(), two.data(), n);
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(one[i], two[i], 1e-6 * (1 + std::fabs(one[i]))) << table->name;
    std::vector<Bf16> narrow(n), again(n);
    kLoops_v2.shared.to_bf16(a.data(), narrow.data(), n);
    table->shared.to_bf16(a.data(), again.data(), n);
    EXPECT_EQ(std::memcmp(narrow.data(), again.data(), sizeof(Bf16) * static_cast<std::size_t>(n)), 0) << table->name;
    EXPECT_NEAR(kLoops_v2.shared.square_sum(a.data(), n) / table->shared.square_sum(a.data(), n), 1, 1e-6);
    auto x = a, y = a;
    EXPECT_NEAR(kLoops_v2.fp32.cross_entropy(x.data(), n, 17, true, 0.5f),
                table->fp32.cross_entropy(y.data(), n, 17, true, 0.5f), 1e-5);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-6) << table->name;
  }
}

TEST(CrossEntropy, EqualsTheReferenceAndSurvivesLargeLogits) {
  const auto kernels = make_cpu_kernels(Type::kFp32);
  const std::int64_t vocabulary = 4999;
  for (const double scale : {1.0, 300.0}) {
    auto logits = numbers(2 * vocabulary, 8, scale);
    const auto before = logits;
    const std::int32_t targets[2] = {4321, -100};
    float loss[2];
    const double weight = 0.25;
    kernels->cross_entropy(logits.data(), targets, 2, vocabulary, loss, &weight);
    double most = -1e9, sum = 0;
    for (std::int64_t i = 0; i < vocabulary; ++i)
      most = std::max(most, static_cast<double>(before[static_cast<std::size_t>(i)]));
    for (std::int64_t i = 0; i < vocabulary; ++i)
      sum += std::exp(static_cast<double>(before[static_cast<std::size_t>(i)]) - most);
    EXPECT_NEAR(loss[0], std::log(sum) + most - static_cast<double>(before[4321]), 1e-6 * (1 + most));
    EXPECT_EQ(loss[1], 0);
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      const double p = std::exp(static_cast<double>(before[static_cast<std::size_t>(i)]) - most) / sum;
      EXPECT_NEAR(logits[static_cast<std::size_t>(i)], weight * (p - (i == 4321)), 1e-6);
      EXPECT_EQ(logits[static_cast<std::size_t>(vocabulary + i)], 0);
    }
  }
}

TEST(AdamW, AThousandStepsFollowTheFormulas) {
  const auto kernels = make_cpu_kernels(Type::kFp32);
  for (const std::int64_t n : {1, 7, 64, 65}) {
    auto p = numbers(static_cast<std::size_t>(n), 1), m = std::vector<float>(p.size()), v = m;
    std::vector<double> p64(p.begin(), p.end()), m64(p.size()), v64(p.size());
    for (int step = 1; step <= 1000; ++step) {
      const auto g = numbers(p.size(), static_cast<std::uint64_t>(step) + 10);
      kernels->adamw({1e-3, 0.9, 0.95, 1e-8, 0.1, step, 0.5}, p.data(), Type::kFp32, g.data(), Type::kFp32, m.data(),
                     v.data(), Type::kFp32, nullptr, Type::kFp32, n);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double gradient = 0.5 * static_cast<double>(g[i]);
        m64[i] = 0.9 * m64[i] + 0.1 * gradient;
        v64[i] = 0.95 * v64[i] + 0.05 * gradient * gradient;
        p64[i] = p64[i] * (1 - 1e-3 * 0.1) -
                 1e-3 * (m64[i] / (1 - std::pow(0.9, step))) / (std::sqrt(v64[i] / (1 - std::pow(0.95, step))) + 1e-8);
      }
    }
    EXPECT_LT(worst(p, p64), 2e-5);
  }
}

// With a copy the update goes block by block: neither the parameters nor the copy may differ at the seams.
TEST(AdamW, TheCopyIsTheParametersRoundedAndTheUpdateIsTheSame) {
  const auto kernels = make_cpu_kernels(Type::kFp32);
  for (const std::int64_t n : {1, 4095, 4096, 4097, 300001}) {
    const auto size = static_cast<std::size_t>(n);
    const auto g = numbers(size, 3);
    auto p = numbers(size, 1), m = std::vector<float>(size), v = m;
    auto with = p, with_m = m, with_v = v;
    std::vector<std::uint16_t> copy(size, 0xFFFF), rounded(size);
    const AdamW settings{1e-3, 0.9, 0.95, 1e-8, 0.1, 3, 0.5};
    kernels->adamw(settings, p.data(), Type::kFp32, g.data(), Type::kFp32, m.data(), v.data(), Type::kFp32, nullptr,
                   Type::kFp32, n);
    kernels->adamw(settings, with.data(), Type::kFp32, g.data(), Type::kFp32, with_m.data(), with_v.data(), Type::kFp32,
                   copy.data(), Type::kBf16, n);
    EXPECT_EQ(with, p) << n;
    EXPECT_EQ(with_m, m);
    EXPECT_EQ(with_v, v);
    kernels->cast(p.data(), Type::kFp32, rounded.data(), Type::kBf16, n);
    EXPECT_EQ(copy, rounded) << n;
  }
}

TEST(Dropout, KeepsTheMeanAndRepeatsItself) {
  const auto kernels = make_cpu_kernels(Type::kFp32);
  std::vector<float> x(64 * 100, 1.0f);
  const std::vector<std::int64_t> samples{3, 9};
  kernels->dropout(x.data(), 64, 100, 32, samples, {0.25, 5});
  double sum = 0;
  for (const float one : x) {
    EXPECT_TRUE(one == 0 || std::fabs(one - 4.0f / 3) < 1e-6);
    sum += static_cast<double>(one);
  }
  EXPECT_NEAR(sum / 6400, 1, 0.05);
  // The draws belong to the sample: alone, and in another place of the batch, it drops the same.
  std::vector<float> alone(32 * 100, 1.0f);
  const std::vector<std::int64_t> second{9};
  kernels->dropout(alone.data(), 32, 100, 32, second, {0.25, 5});
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), x.begin() + 3200));
}

}  // namespace
}  // namespace shardfit::kernels
