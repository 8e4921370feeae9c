// GPT-2: learned positions, LayerNorm with bias, one fused projection for q, k and v, Conv1D weights stored [in, out],
// GELU (tanh).
//   x = x + drop(c_proj(attention(c_attn(ln_1(x)))));  x = x + drop(c_proj(gelu(c_fc(ln_2(x)))))
#include <cmath>
#include <string>

#include "runtime/models/root.hpp"

namespace shardfit::models {
namespace {

using kernels::LinearShape;
using kernels::NormShape;
using kernels::WeightLayout;

struct Offsets {
  std::int64_t norm1, norm1_bias, qkv, qkv_bias, output, output_bias, norm2, norm2_bias, wide, wide_bias, narrow,
      narrow_bias;
};

class Gpt2 final : public Root {
 public:
  Gpt2(const Math& math, const schedule::Sizes& sizes, const std::vector<schedule::Unit>& units,
       kernels::Kernels& kernels)
      : Root(math, sizes, units.at(0),
             {"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight", "transformer.ln_f.bias",
              "lm_head.weight"},
             kernels),
        saved_(schedule::saved_layout(sizes)),
        forward_(schedule::forward_layout(sizes)),
        backward_(schedule::backward_layout(sizes)),
        hidden_(math.geometry.hidden),
        inner_(math.geometry.intermediate) {
    for (std::size_t i = 1; i < units.size(); ++i) offsets_.push_back(offsets_of(units[i], static_cast<int>(i) - 1));
  }

  void forward(int block, const Flat& w, const Batch& batch, const StepContext& context, const void* in, char* saved,
               void* out, char* scratch) override {
    const auto& at = offsets_[static_cast<std::size_t>(block)];
    const auto n = rows();
    const NormShape norm{n, hidden_, math_.norm_epsilon};
    void *normed = scratch + forward_.at("normed"), *activated = scratch + forward_.at("activated");
    auto field = [&](const char* name) -> void* { return saved + saved_.at(name); };
    auto stats = [&](const char* name) { return reinterpret_cast<float*>(saved + saved_.at(name)); };

    kernels_.layer_norm(norm, in, w.at(at.norm1), w.at(at.norm1_bias), normed, stats("norm1_stats"));
    auto* qkv = static_cast<char*>(field("qkv"));
    kernels_.linear(fused(), normed, w.at(at.qkv), w.at(at.qkv_bias), qkv);
    void *attended = field("attention"), *middle = field("middle");
    kernels_.attention(attention_shape(block, batch, context), qkv, qkv + third(), qkv + 2 * third(), attended,
                       stats("log_sum"), scratch + forward_.at("tiles"));
    kernels_.linear(square(), attended, w.at(at.output), w.at(at.output_bias), normed);
    kernels_.dropout(normed, n, hidden_, sizes_.sequence, batch.samples,
                     dropout(math_.residual_dropout, context, block, 2));
    kernels_.add(in, normed, middle, n * hidden_);

    kernels_.layer_norm(norm, middle, w.at(at.norm2), w.at(at.norm2_bias), normed, stats("norm2_stats"));
    void* inner = field("inner");
    kernels_.linear(wide(), normed, w.at(at.wide), w.at(at.wide_bias), inner);
    kernels_.gelu(inner, activated, n * inner_);
    kernels_.linear(narrow(), activated, w.at(at.narrow), w.at(at.narrow_bias), normed);
    kernels_.dropout(normed, n, hidden_, sizes_.sequence, batch.samples,
                     dropout(math_.residual_dropout, context, block, 3));
    kernels_.add(middle, normed, out, n * hidden_);
  }

  void backward(int block, const Flat& w, const Flat& d, const Batch& batch, const StepContext& context, const void* in,
                const char* saved, void* d_stream, char* scratch, bool accumulate) override {
    const auto& at = offsets_[static_cast<std::size_t>(block)];
    const auto n = rows();
    const NormShape norm{n, hidden_, math_.norm_epsilon};
    auto field = [&](const char* name) { return saved + saved_.at(name); };
    auto stats = [&](const char* name) { return reinterpret_cast<const float*>(saved + saved_.at(name)); };
    auto room = [&](const char* name) -> void* { return scratch + backward_.at(name); };
    void *normed = room("normed"), *flow = room("flow");
    auto weights_of = [&](const LinearShape& shape, const void* dy, const void* x, std::int64_t dw, std::int64_t db) {
      kernels_.linear_backward_weight(shape, dy, x, d.at(dw), d.type, d.at(db), accumulate, nullptr, 0);
    };
    // The gradient that enters a branch behind its dropout: the stream's own, or a masked copy in `flow`.
    auto behind_dropout = [&](int place) -> const void* {
      const auto mask = dropout(math_.residual_dropout, context, block, place);
      if (mask.probability <= 0) return d_stream;
      kernels_.cast(d_stream, kernels_.type(), flow, kernels_.type(), n * hidden_);
      kernels_.dropout(flow, n, hidden_, sizes_.sequence, batch.samples, mask);
      return flow;
    };

    // Feed-forward layer.
    void *activated = room("activated"), *d_inner = room("d_activated");
    kernels_.gelu(field("inner"), activated, n * inner_);
    const void* entering = behind_dropout(3);
    weights_of(narrow(), entering, activated, at.narrow, at.narrow_bias);
    kernels_.linear_backward_input(narrow(), entering, w.at(at.narrow), d_inner, false);
    kernels_.gelu_backward(field("inner"), d_inner, n * inner_);
    kernels_.layer_norm_again(norm, field("middle"), w.at(at.norm2), w.at(at.norm2_bias), stats("norm2_stats"), normed);
    weights_of(wide(), d_inner, normed, at.wide, at.wide_bias);
    kernels_.linear_backward_input(wide(), d_inner, w.at(at.wide), flow, false);
    kernels_.layer_norm_backward(norm, flow, field("middle"), w.at(at.norm2), stats("norm2_stats"), d_stream, true,
                                 d.at(at.norm2), d.at(at.norm2_bias), d.type, accumulate);

    // Attention, in the room of the feed-forward layer's gradients.
    void* d_attended = room("d_attention");
    auto* d_qkv = static_cast<char*>(room("d_qkv"));
    entering = behind_dropout(2);
    weights_of(square(), entering, field("attention"), at.output, at.output_bias);
    kernels_.linear_backward_input(square(), entering, w.at(at.output), d_attended, false);
    const auto* qkv = field("qkv");
    kernels_.attention_backward(attention_shape(block, batch, context), qkv, qkv + third(), qkv + 2 * third(),
                                field("attention"), d_attended, stats("log_sum"), static_cast<float*>(room("delta")),
                                d_qkv, d_qkv + third(), d_qkv + 2 * third(), room("tiles"));
    kernels_.layer_norm_again(norm, in, w.at(at.norm1), w.at(at.norm1_bias), stats("norm1_stats"), normed);
    weights_of(fused(), d_qkv, normed, at.qkv, at.qkv_bias);
    kernels_.linear_backward_input(fused(), d_qkv, w.at(at.qkv), flow, false);
    kernels_.layer_norm_backward(norm, flow, in, w.at(at.norm1), stats("norm1_stats"), d_stream, true, d.at(at.norm1),
                                 d.at(at.norm1_bias), d.type, accumulate);
  }

 private:
  LinearShape fused() const { return {rows(), hidden_, 3 * hidden_, WeightLayout::kInOut}; }
  LinearShape square() const { return {rows(), hidden_, hidden_, WeightLayout::kInOut}; }
  LinearShape wide() const { return {rows(), hidden_, inner_, WeightLayout::kInOut}; }
  LinearShape narrow() const { return {rows(), inner_, hidden_, WeightLayout::kInOut}; }
  std::int64_t third() const {
    return hidden_ * kernels::width_of(kernels_.type());
  }  // bytes from q to k to v in a row

  static Offsets offsets_of(const schedule::Unit& unit, int block) {
    const auto prefix = "transformer.h." + std::to_string(block) + ".";
    auto at = [&](const char* name) { return offset(unit, prefix + name); };
    return {at("ln_1.weight"),        at("ln_1.bias"),        at("attn.c_attn.weight"), at("attn.c_attn.bias"),
            at("attn.c_proj.weight"), at("attn.c_proj.bias"), at("ln_2.weight"),        at("ln_2.bias"),
            at("mlp.c_fc.weight"),    at("mlp.c_fc.bias"),    at("mlp.c_proj.weight"),  at("mlp.c_proj.bias")};
  }

  kernels::AttentionShape attention_shape(int block, const Batch& batch, const StepContext& context) const {
    const auto& g = math_.geometry;
    return {.heads = g.heads,
            .kv_heads = g.heads,
            .head_dim = g.head_dim,
            .row_q = 3 * hidden_,
            .row_k = 3 * hidden_,
            .row_v = 3 * hidden_,
            .row_out = hidden_,
            .scale = 1.0 / std::sqrt(static_cast<double>(g.head_dim)),
            .window = {},
            .documents = batch.documents,
            .rows = rows(),
            .sequence = sizes_.sequence,
            .dropout = dropout(math_.attention_dropout, context, block, 1),
            .workers = sizes_.attention_workers,
            .tile_bytes = schedule::attention_tile_bytes(sizes_)};
  }

  const schedule::Layout saved_, forward_, backward_;
  const std::int64_t hidden_, inner_;
  std::vector<Offsets> offsets_;
};

}  // namespace

std::unique_ptr<Family> make_gpt2(const Math& math, const schedule::Sizes& sizes,
                                  const std::vector<schedule::Unit>& units, kernels::Kernels& kernels) {
  return std::make_unique<Gpt2>(math, sizes, units, kernels);
}

}  // namespace shardfit::models
