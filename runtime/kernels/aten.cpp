// The kernels as compositions of LibTorch operators, on any device that LibTorch knows: what GPUs use, and what the
// tests run on the CPU against the same golden values as the CPU's own kernels. Plain rather than fast: attention forms
// the scores of one document at a time.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/kernels/cpu_attention.hpp"
#include "runtime/kernels/kernels.hpp"

namespace shardfit::kernels {
namespace {

using at::Tensor;
using Sizes = std::vector<std::int64_t>;

at::ScalarType scalar_of(Type type) { return type == Type::kFp32 ? at::kFloat : at::kBFloat16; }

class Aten final : public Kernels {
 public:
  Aten(Type type, c10::Device device) : Kernels(type), device_(device) {}

  void linear(const LinearShape& s, const void* x, const void* w, const void* bias, void* y) override {
    const c10::InferenceMode no_autograd;
    auto out = values(y, {s.rows, s.out});
    at::mm_out(out, values(x, {s.rows, s.in}), weight(s, w));
    if (bias) out.add_(values(bias, {s.out}));
  }
  void linear_backward_input(const LinearShape& s, const void* dy, const void* w, void* dx, bool accumulate) override {
    const c10::InferenceMode no_autograd;
    auto out = values(dx, {s.rows, s.in});
    const auto left = values(dy, {s.rows, s.out}), right = weight(s, w).t();
    if (accumulate) at::addmm_out(out, out, left, right);
    else at::mm_out(out, left, right);
  }
  void linear_backward_weight(const LinearShape& s, const void* dy, const void* x, void* dw, Type dw_type, void* dbias,
                              bool accumulate, void*, std::int64_t) override {
    const c10::InferenceMode no_autograd;
    const auto gradient = values(dy, {s.rows, s.out}), input = values(x, {s.rows, s.in});
    const bool out_in = s.layout == WeightLayout::kOutIn;
    auto to = tensor(dw, dw_type, out_in ? Sizes{s.out, s.in} : Sizes{s.in, s.out});
    const auto left = out_in ? gradient.t() : input.t();
    const auto& right = out_in ? input : gradient;
    if (dw_type == type() && accumulate) at::addmm_out(to, to, left, right);
    else if (dw_type == type()) at::mm_out(to, left, right);
    else put(to, at::mm(left, right), accumulate);
    if (dbias) put(tensor(dbias, dw_type, {s.out}), gradient.to(at::kFloat).sum(0), accumulate);
  }

  void rms_norm(const NormShape& s, const void* x, const void* w, void* y, float* stats) override {
    const c10::InferenceMode no_autograd;
    floats(stats, {s.rows}).copy_(at::rsqrt(wide(x, {s.rows, s.width}).square().mean(1) + s.epsilon));
    rms_norm_again(s, x, w, stats, y);
  }
  void rms_norm_again(const NormShape& s, const void* x, const void* w, const float* stats, void* y) override {
    const c10::InferenceMode no_autograd;
    values(y, {s.rows, s.width}).copy_(wide(x, {s.rows, s.width}) * floats(stats, {s.rows, 1}) * wide(w, {s.width}));
  }
  void rms_norm_backward(const NormShape& s, const void* dy, const void* x, const void* w, const float* stats, void* dx,
                         bool accumulate_dx, void* dw, Type dw_type, bool accumulate_dw) override {
    const c10::InferenceMode no_autograd;
    const auto gradient = wide(dy, {s.rows, s.width}).clone(),
               scaled = wide(x, {s.rows, s.width}) * floats(stats, {s.rows, 1});
    put(tensor(dw, dw_type, {s.width}), (gradient * scaled).sum(0), accumulate_dw);
    const auto flow = gradient * wide(w, {s.width});
    put(values(dx, {s.rows, s.width}), (flow - scaled * (flow * scaled).mean(1, true)) * floats(stats, {s.rows, 1}),
        accumulate_dx);
  }
  void layer_norm(const NormShape& s, const void* x, const void* w, const void* b, void* y, float* stats) override {
    const c10::InferenceMode no_autograd;
    const auto input = wide(x, {s.rows, s.width}), mean = input.mean(1, true);
    auto kept = floats(stats, {s.rows, 2});
    kept.select(1, 0).copy_(mean.squeeze(1));
    kept.select(1, 1).copy_(at::rsqrt((input - mean).square().mean(1) + s.epsilon));
    layer_norm_again(s, x, w, b, stats, y);
  }
  void layer_norm_again(const NormShape& s, const void* x, const void* w, const void* b, const float* stats,
                        void* y) override {
    const c10::InferenceMode no_autograd;
    values(y, {s.rows, s.width}).copy_(normed(s, x, stats) * wide(w, {s.width}) + wide(b, {s.width}));
  }
  void layer_norm_backward(const NormShape& s, const void* dy, const void* x, const void* w, const float* stats,
                           void* dx, bool accumulate_dx, void* dw, void* db, Type dw_type,
                           bool accumulate_dw) override {
    const c10::InferenceMode no_autograd;
    const auto gradient = wide(dy, {s.rows, s.width}).clone(), scaled = normed(s, x, stats);
    put(tensor(dw, dw_type, {s.width}), (gradient * scaled).sum(0), accumulate_dw);
    put(tensor(db, dw_type, {s.width}), gradient.sum(0), accumulate_dw);
    const auto flow = gradient * wide(w, {s.width});
    put(values(dx, {s.rows, s.width}),
        (flow - flow.mean(1, true) - scaled * (flow * scaled).mean(1, true)) *
            floats(stats, {s.rows, 2}).narrow(1, 1, 1),
        accumulate_dx);
  }

  void rope(void* x, std::int64_t rows, std::int64_t heads, std::int64_t dim, const std::int32_t* positions,
            const float* table, bool back) override {
    const c10::InferenceMode no_autograd;
    const auto half = dim / 2, last = whole(positions, rows).max().item<std::int64_t>() + 1;
    const auto angles = floats(table, {last, dim}).index_select(0, whole(positions, rows)).unsqueeze(1);
    const auto cosines = angles.narrow(2, 0, half), sines = angles.narrow(2, half, half) * (back ? -1.0 : 1.0);
    auto all = values(x, {rows, heads, dim});
    const auto low = all.narrow(2, 0, half).to(at::kFloat, false, true),
               high = all.narrow(2, half, half).to(at::kFloat, false, true);
    all.narrow(2, 0, half).copy_(low * cosines - high * sines);
    all.narrow(2, half, half).copy_(high * cosines + low * sines);
  }

  void attention(const AttentionShape& s, const void* q, const void* k, const void* v, void* out, float* log_sum,
                 void*) override {
    const c10::InferenceMode no_autograd;
    auto result = rows_of(out, s, s.row_out, s.heads);
    result.zero_();
    auto kept = floats(log_sum, {s.rows, s.heads});
    for (const auto& d : s.documents) {
      const auto scores = scores_of(s, d, q, k);
      const auto sums = at::logsumexp(scores, 2, false);  // [heads, length]
      kept.narrow(0, d.begin, d.end - d.begin).copy_(sums.t());
      auto p = at::exp(scores - sums.unsqueeze(2));
      if (s.dropout.probability > 0) p = p * mask_of(s, d);
      const auto v_heads = spread(s, part(rows_of(v, s, s.row_v, s.kv_heads), d));
      result.narrow(0, d.begin, d.end - d.begin).copy_(at::matmul(p, v_heads).transpose(0, 1));
    }
  }
  void attention_backward(const AttentionShape& s, const void* q, const void* k, const void* v, const void* out,
                          const void* d_out, const float* log_sum, float*, void* dq, void* dk, void* dv,
                          void*) override {
    const c10::InferenceMode no_autograd;
    auto q_to = rows_of(dq, s, s.row_q, s.heads), k_to = rows_of(dk, s, s.row_k, s.kv_heads),
         v_to = rows_of(dv, s, s.row_v, s.kv_heads);
    for (auto* to : {&q_to, &k_to, &v_to}) to->zero_();
    const auto group = s.heads / s.kv_heads;
    for (const auto& d : s.documents) {
      const auto length = d.end - d.begin;
      const auto sums = floats(log_sum, {s.rows, s.heads}).narrow(0, d.begin, length).t().unsqueeze(2);
      const auto p = at::exp(scores_of(s, d, q, k) - sums);
      const auto q_heads = part(rows_of(q, s, s.row_q, s.heads), d),
                 k_heads = spread(s, part(rows_of(k, s, s.row_k, s.kv_heads), d));
      const auto v_heads = spread(s, part(rows_of(v, s, s.row_v, s.kv_heads), d));
      const auto o_heads = part(rows_of(out, s, s.row_out, s.heads), d),
                 do_heads = part(rows_of(d_out, s, s.row_out, s.heads), d);
      auto dp = at::matmul(do_heads, v_heads.transpose(1, 2));
      auto dropped = p;
      if (s.dropout.probability > 0) {
        const auto mask = mask_of(s, d);
        dropped = p * mask;
        dp = dp * mask;
      }
      const auto delta = (do_heads * o_heads).sum(2, true);
      const auto ds = p * (dp - delta) * s.scale;
      auto gathered = [&](const Tensor& x) {
        return x.reshape({s.kv_heads, group, length, s.head_dim}).sum(1).transpose(0, 1);
      };
      q_to.narrow(0, d.begin, length).copy_(at::matmul(ds, k_heads).transpose(0, 1));
      k_to.narrow(0, d.begin, length).copy_(gathered(at::matmul(ds.transpose(1, 2), q_heads)));
      v_to.narrow(0, d.begin, length).copy_(gathered(at::matmul(dropped.transpose(1, 2), do_heads)));
    }
  }

  void swiglu(const void* gate, const void* up, void* y, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    const auto g = wide(gate, {n});
    values(y, {n}).copy_(g * at::sigmoid(g) * wide(up, {n}));
  }
  void swiglu_backward(const void* gate, const void* up, void* dy, void* d_gate, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    const auto g = wide(gate, {n}), d = wide(dy, {n}), s = at::sigmoid(g);
    values(d_gate, {n}).copy_(d * wide(up, {n}) * s * (1 + g * (1 - s)));
    values(dy, {n}).copy_(d * g * s);
  }
  void gelu(const void* x, void* y, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    values(y, {n}).copy_(at::gelu(wide(x, {n}), "tanh"));
  }
  void gelu_backward(const void* x, void* dy, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    values(dy, {n}).copy_(at::gelu_backward(wide(dy, {n}), wide(x, {n}), "tanh"));
  }
  void add(const void* a, const void* b, void* y, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    values(y, {n}).copy_(values(a, {n}) + values(b, {n}));
  }
  void dropout(void* x, std::int64_t rows, std::int64_t width, std::int64_t sequence,
               std::span<const std::int64_t> samples, const Dropout& d) override {
    if (d.probability <= 0) return;
    const c10::InferenceMode no_autograd;
    const auto limit = drop_limit(d.probability);
    const auto keep = static_cast<float>(1.0 / (1.0 - d.probability));
    std::vector<float> mask(static_cast<std::size_t>(rows * width));
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto key = mix(d.key, static_cast<std::uint64_t>(samples[static_cast<std::size_t>(r / sequence)]));
      for (std::int64_t i = 0; i < width; ++i)
        mask[static_cast<std::size_t>(r * width + i)] =
            mix(key, static_cast<std::uint64_t>((r % sequence) * width + i)) < limit ? 0.0f : keep;
    }
    values(x, {rows, width}).mul_(on_device(mask, {rows, width}));
  }

  void embedding(const void* table, const std::int32_t* ids, void* y, std::int64_t rows, std::int64_t width,
                 bool accumulate) override {
    const c10::InferenceMode no_autograd;
    const auto which = whole(ids, rows);
    const auto found = values(table, {which.max().item<std::int64_t>() + 1, width}).index_select(0, which);
    put(values(y, {rows, width}), found, accumulate);
  }
  void embedding_backward(const void* dx, const std::int32_t* ids, std::int64_t rows, std::int64_t width, void* d_table,
                          Type d_type) override {
    const c10::InferenceMode no_autograd;
    const auto which = whole(ids, rows);
    // Rows are summed in fp32 first: index_add_ in a narrow type would round after each.
    const auto count = which.max().item<std::int64_t>() + 1;
    auto sums = at::empty({count, width}, at::TensorOptions().dtype(at::kFloat).device(device_));
    sums.zero_();
    sums.index_add_(0, which, wide(dx, {rows, width}));
    tensor(d_table, d_type, {count, width}).add_(sums);
  }

  void cross_entropy(void* logits, const std::int32_t* targets, std::int64_t rows, std::int64_t vocabulary,
                     float* row_loss, const double* scale) override {
    const c10::InferenceMode no_autograd;
    auto scores = values(logits, {rows, vocabulary});
    const auto wide_scores = scores.to(at::kFloat, false, true);
    const auto target = whole(targets, rows);
    const auto counts = target.ge(0).to(at::kFloat);
    const auto where = target.clamp_min(0).unsqueeze(1);
    const auto sums = at::logsumexp(wide_scores, 1, true);
    floats(row_loss, {rows}).copy_((sums - wide_scores.gather(1, where)).squeeze(1) * counts);
    if (!scale) return;
    auto gradient = at::exp(wide_scores - sums);
    gradient.scatter_add_(1, where, at::empty({rows, 1}, gradient.options()).fill_(-1.0));
    scores.copy_(gradient * (counts * *scale).unsqueeze(1));
  }

  void fill_zero(void* data, std::int64_t bytes) override { raw(data, bytes, device_).zero_(); }
  void copy_to_device(void* to, const void* from, std::int64_t bytes) override {
    raw(to, bytes, device_).copy_(raw(from, bytes, at::kCPU));
  }
  void copy_to_host(void* to, const void* from, std::int64_t bytes) override {
    raw(to, bytes, at::kCPU).copy_(raw(from, bytes, device_));
  }
  void cast(const void* from, Type from_type, void* to, Type to_type, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    tensor(to, to_type, {n}).copy_(tensor(from, from_type, {n}));
  }
  void add_cast(const void* from, Type from_type, void* to, Type to_type, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    tensor(to, to_type, {n}).add_(tensor(from, from_type, {n}));
  }
  double sum_of_squares(const void* data, Type data_type, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    double total = 0;
    for (std::int64_t first = 0; first < n; first += kBlock) {
      const auto size = std::min(kBlock, n - first);
      total += tensor(static_cast<const char*>(data) + first * width_of(data_type), data_type, {size})
                   .to(at::kDouble)
                   .square()
                   .sum()
                   .item<double>();
    }
    return total;
  }
  double sum(const float* data, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    return floats(data, {n}).to(at::kDouble).sum().item<double>();
  }

  void adamw(const AdamW& a, void* parameters, Type parameter_type, const void* gradients, Type gradient_type,
             void* exp_avg, void* exp_avg_sq, Type state_type, void* copy, Type copy_type, std::int64_t n) override {
    const c10::InferenceMode no_autograd;
    const auto step = static_cast<double>(a.step);
    for (std::int64_t first = 0; first < n; first += kBlock) {  // temporaries of one block at a time
      const auto size = std::min(kBlock, n - first);
      auto at_block = [&](const void* data, Type type) {
        return tensor(static_cast<const char*>(data) + first * width_of(type), type, {size});
      };
      const auto g = at_block(gradients, gradient_type).to(at::kFloat) * a.gradient_scale;
      auto m_kept = at_block(exp_avg, state_type), v_kept = at_block(exp_avg_sq, state_type),
           p_kept = at_block(parameters, parameter_type);
      const auto m = m_kept.to(at::kFloat) * a.beta1 + g * (1 - a.beta1);
      const auto v = v_kept.to(at::kFloat) * a.beta2 + g.square() * (1 - a.beta2);
      const auto root = v.sqrt() / std::sqrt(1 - std::pow(a.beta2, step)) + a.epsilon;
      const auto p = p_kept.to(at::kFloat) * (1 - a.learning_rate * a.weight_decay) -
                     m / root * (a.learning_rate / (1 - std::pow(a.beta1, step)));
      m_kept.copy_(m);
      v_kept.copy_(v);
      p_kept.copy_(p);
      if (copy) at_block(copy, copy_type).copy_(p);
    }
  }

 private:
  static constexpr std::int64_t kBlock = std::int64_t{1} << 24;

  Tensor tensor(const void* data, Type type, const Sizes& sizes) const {
    return at::from_blob(const_cast<void*>(data), sizes,
                         at::TensorOptions().dtype(scalar_of(type)).device(device_));  // inputs are only read
  }
  Tensor values(const void* data, const Sizes& sizes) const { return tensor(data, type(), sizes); }
  Tensor floats(const void* data, const Sizes& sizes) const { return tensor(data, Type::kFp32, sizes); }
  Tensor wide(const void* data, const Sizes& sizes) const { return values(data, sizes).to(at::kFloat); }
  Tensor whole(const std::int32_t* data, std::int64_t n) const {
    return at::from_blob(const_cast<std::int32_t*>(data), {n}, at::TensorOptions().dtype(at::kInt).device(device_))
        .to(at::kLong);
  }
  static Tensor raw(const void* data, std::int64_t bytes, c10::Device device) {
    return at::from_blob(const_cast<void*>(data), {bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  }
  Tensor on_device(const std::vector<float>& host, const Sizes& sizes) const {
    return at::from_blob(const_cast<float*>(host.data()), sizes, at::TensorOptions().dtype(at::kFloat))
        .to(device_, at::kFloat, false, true);
  }
  Tensor weight(const LinearShape& s, const void* w) const {  // as [in, out]
    return s.layout == WeightLayout::kOutIn ? values(w, {s.out, s.in}).t() : values(w, {s.in, s.out});
  }
  static void put(Tensor to, const Tensor& from, bool accumulate) {
    if (accumulate) to.add_(from);
    else to.copy_(from);
  }
  Tensor normed(const NormShape& s, const void* x, const float* stats) const {
    const auto kept = floats(stats, {s.rows, 2});
    return (wide(x, {s.rows, s.width}) - kept.narrow(1, 0, 1)) * kept.narrow(1, 1, 1);
  }

  // [rows, heads, dim] inside wider rows.
  Tensor rows_of(const void* data, const AttentionShape& s, std::int64_t row, std::int64_t heads) const {
    return at::from_blob(const_cast<void*>(data), {s.rows, heads, s.head_dim}, {row, s.head_dim, 1},
                         at::TensorOptions().dtype(scalar_of(type())).device(device_));
  }
  static Tensor part(const Tensor& rows, const Document& d) {
    return rows.narrow(0, d.begin, d.end - d.begin).transpose(0, 1).to(at::kFloat);
  }
  static Tensor spread(const AttentionShape& s, const Tensor& kv_heads) {
    return kv_heads.repeat_interleave(s.heads / s.kv_heads, 0);
  }
  Tensor scores_of(const AttentionShape& s, const Document& d, const void* q, const void* k) const {
    const auto length = d.end - d.begin;
    auto scores = at::matmul(part(rows_of(q, s, s.row_q, s.heads), d),
                             spread(s, part(rows_of(k, s, s.row_k, s.kv_heads), d)).transpose(1, 2)) *
                  s.scale;
    const auto place = at::arange(length, at::TensorOptions().dtype(at::kLong).device(device_));
    const auto back = place.unsqueeze(1) - place.unsqueeze(0);
    auto hidden = back.lt(0);
    if (s.window) hidden = hidden.logical_or(back.ge(*s.window));
    return scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
  }
  Tensor mask_of(const AttentionShape& s, const Document& d) const {
    const auto length = d.end - d.begin, base = d.begin % s.sequence;
    const auto limit = drop_limit(s.dropout.probability);
    const auto keep = static_cast<float>(1.0 / (1.0 - s.dropout.probability));
    std::vector<float> mask(static_cast<std::size_t>(s.heads * length * length));
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const auto key = mix(mix(s.dropout.key, static_cast<std::uint64_t>(d.sample)), static_cast<std::uint64_t>(h));
      for (std::int64_t i = 0; i < length; ++i)
        for (std::int64_t j = 0; j <= i; ++j)
          mask[static_cast<std::size_t>((h * length + i) * length + j)] =
              mix(key, static_cast<std::uint64_t>((base + i) * s.sequence + base + j)) < limit ? 0.0f : keep;
    }
    return on_device(mask, {s.heads, length, length});
  }

  const c10::Device device_;
};

}  // namespace

std::unique_ptr<Kernels> make_aten_kernels(Type type, int cuda_device) {
  return std::make_unique<Aten>(type, cuda_device < 0
                                          ? c10::Device(at::kCPU)
                                          : c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device)));
}

}  // namespace shardfit::kernels
