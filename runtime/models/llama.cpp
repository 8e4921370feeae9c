// The Llama family: Llama 1 to 3, Mistral, Qwen2 (biases on q, k, v), Qwen3 (a norm over each head of q and k).
//   x = x + o(attention(rope(q), rope(k), v)) of rms_norm(x);  x = x + down(silu(gate) * up) of rms_norm(x)
#include <cmath>
#include <string>

#include "runtime/models/root.hpp"

namespace shardfit::models {
namespace {

using kernels::LinearShape;
using kernels::NormShape;

struct Offsets {  // of a block's parameters in its unit; -1 = the model has none
  std::int64_t norm1, q, k, v, o, norm2, gate, up, down;
  std::int64_t q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias, q_norm, k_norm;
};

class Llama final : public Root {
 public:
  Llama(const Math& math, const schedule::Sizes& sizes, const std::vector<schedule::Unit>& units,
        kernels::Kernels& kernels, const float* rope_table)
      : Root(math, sizes, units.at(0), {"model.embed_tokens.weight", "", "model.norm.weight", "", "lm_head.weight"},
             kernels),
        rope_table_(rope_table),
        saved_(schedule::saved_layout(sizes)),
        forward_(schedule::forward_layout(sizes)),
        backward_(schedule::backward_layout(sizes)),
        hidden_(math.geometry.hidden),
        query_(math.geometry.query_width()),
        key_(math.geometry.kv_width()),
        inner_(math.geometry.intermediate) {
    for (std::size_t i = 1; i < units.size(); ++i) offsets_.push_back(offsets_of(units[i], static_cast<int>(i) - 1));
  }

  void forward(int block, const Flat& w, const Batch& batch, const StepContext& context, const void* in, char* saved,
               void* out, char* scratch) override {
    const auto& at = offsets_[static_cast<std::size_t>(block)];
    const auto& g = math_.geometry;
    const auto n = rows();
    void* normed = scratch + forward_.at("normed");
    void* activated = scratch + forward_.at("activated");
    auto field = [&](const char* name) -> void* { return saved + saved_.at(name); };
    auto stats = [&](const char* name) { return reinterpret_cast<float*>(saved + saved_.at(name)); };

    kernels_.rms_norm({n, hidden_, math_.norm_epsilon}, in, w.at(at.norm1), normed, stats("norm1_stats"));
    void *q = field("q"), *k = field("k"), *v = field("v");
    void *q_raw = g.head_norms ? field("q_raw") : q, *k_raw = g.head_norms ? field("k_raw") : k;
    kernels_.linear({n, hidden_, query_}, normed, w.at(at.q), weight(w, at.q_bias), q_raw);
    kernels_.linear({n, hidden_, key_}, normed, w.at(at.k), weight(w, at.k_bias), k_raw);
    kernels_.linear({n, hidden_, key_}, normed, w.at(at.v), weight(w, at.v_bias), v);
    if (g.head_norms) {
      kernels_.rms_norm({n * g.heads, g.head_dim, math_.norm_epsilon}, q_raw, w.at(at.q_norm), q, stats("q_stats"));
      kernels_.rms_norm({n * g.kv_heads, g.head_dim, math_.norm_epsilon}, k_raw, w.at(at.k_norm), k, stats("k_stats"));
    }
    kernels_.rope(q, n, g.heads, g.head_dim, batch.positions, rope_table_, false);
    kernels_.rope(k, n, g.kv_heads, g.head_dim, batch.positions, rope_table_, false);
    void *attended = field("attention"), *middle = field("middle");
    kernels_.attention(attention_shape(block, batch, context), q, k, v, attended, stats("log_sum"),
                       scratch + forward_.at("tiles"));
    kernels_.linear({n, query_, hidden_}, attended, w.at(at.o), weight(w, at.o_bias), normed);
    kernels_.add(in, normed, middle, n * hidden_);

    kernels_.rms_norm({n, hidden_, math_.norm_epsilon}, middle, w.at(at.norm2), normed, stats("norm2_stats"));
    void *gate = field("gate"), *up = field("up");
    kernels_.linear({n, hidden_, inner_}, normed, w.at(at.gate), weight(w, at.gate_bias), gate);
    kernels_.linear({n, hidden_, inner_}, normed, w.at(at.up), weight(w, at.up_bias), up);
    kernels_.swiglu(gate, up, activated, n * inner_);
    kernels_.linear({n, inner_, hidden_}, activated, w.at(at.down), weight(w, at.down_bias), normed);
    kernels_.add(middle, normed, out, n * hidden_);
  }

  void backward(int block, const Flat& w, const Flat& d, const Batch& batch, const StepContext& context, const void* in,
                const char* saved, void* d_stream, char* scratch, bool accumulate) override {
    const auto& at = offsets_[static_cast<std::size_t>(block)];
    const auto& g = math_.geometry;
    const auto n = rows();
    auto field = [&](const char* name) -> const void* { return saved + saved_.at(name); };
    auto stats = [&](const char* name) { return reinterpret_cast<const float*>(saved + saved_.at(name)); };
    auto room = [&](const char* name) -> void* { return scratch + backward_.at(name); };
    auto gradient = [&](std::int64_t offset) { return offset < 0 ? nullptr : d.at(offset); };
    auto weights_of = [&](const LinearShape& shape, const void* dy, const void* x, std::int64_t dw, std::int64_t db) {
      kernels_.linear_backward_weight(shape, dy, x, d.at(dw), d.type, gradient(db), accumulate, nullptr, 0);
    };
    void *normed = room("normed"), *flow = room("flow");

    // Feed-forward layer.
    void *activated = room("activated"), *d_up = room("d_activated"), *d_gate = room("d_gate");
    const LinearShape down{n, inner_, hidden_}, wide{n, hidden_, inner_};
    kernels_.swiglu(field("gate"), field("up"), activated, n * inner_);
    weights_of(down, d_stream, activated, at.down, at.down_bias);
    kernels_.linear_backward_input(down, d_stream, w.at(at.down), d_up, false);
    kernels_.swiglu_backward(field("gate"), field("up"), d_up, d_gate, n * inner_);
    const NormShape norm{n, hidden_, math_.norm_epsilon};
    kernels_.rms_norm_again(norm, field("middle"), w.at(at.norm2), stats("norm2_stats"), normed);
    weights_of(wide, d_gate, normed, at.gate, at.gate_bias);
    weights_of(wide, d_up, normed, at.up, at.up_bias);
    kernels_.linear_backward_input(wide, d_gate, w.at(at.gate), flow, false);
    kernels_.linear_backward_input(wide, d_up, w.at(at.up), flow, true);
    kernels_.rms_norm_backward(norm, flow, field("middle"), w.at(at.norm2), stats("norm2_stats"), d_stream, true,
                               d.at(at.norm2), d.type, accumulate);

    // Attention; the feed-forward layer's gradients are dead, their room is used again.
    void *d_attended = room("d_attention"), *dq = room("d_q"), *dk = room("d_k"), *dv = room("d_v");
    const LinearShape output{n, query_, hidden_}, query{n, hidden_, query_}, key{n, hidden_, key_};
    weights_of(output, d_stream, field("attention"), at.o, at.o_bias);
    kernels_.linear_backward_input(output, d_stream, w.at(at.o), d_attended, false);
    kernels_.attention_backward(attention_shape(block, batch, context), field("q"), field("k"), field("v"),
                                field("attention"), d_attended, stats("log_sum"), static_cast<float*>(room("delta")),
                                dq, dk, dv, room("tiles"));
    kernels_.rope(dq, n, g.heads, g.head_dim, batch.positions, rope_table_, true);
    kernels_.rope(dk, n, g.kv_heads, g.head_dim, batch.positions, rope_table_, true);
    if (g.head_norms) {
      const NormShape heads{n * g.heads, g.head_dim, math_.norm_epsilon},
          kv_heads{n * g.kv_heads, g.head_dim, math_.norm_epsilon};
      kernels_.rms_norm_backward(heads, dq, field("q_raw"), w.at(at.q_norm), stats("q_stats"), dq, false,
                                 d.at(at.q_norm), d.type, accumulate);
      kernels_.rms_norm_backward(kv_heads, dk, field("k_raw"), w.at(at.k_norm), stats("k_stats"), dk, false,
                                 d.at(at.k_norm), d.type, accumulate);
    }
    kernels_.rms_norm_again(norm, in, w.at(at.norm1), stats("norm1_stats"), normed);
    weights_of(query, dq, normed, at.q, at.q_bias);
    weights_of(key, dk, normed, at.k, at.k_bias);
    weights_of(key, dv, normed, at.v, at.v_bias);
    kernels_.linear_backward_input(query, dq, w.at(at.q), flow, false);
    kernels_.linear_backward_input(key, dk, w.at(at.k), flow, true);
    kernels_.linear_backward_input(key, dv, w.at(at.v), flow, true);
    kernels_.rms_norm_backward(norm, flow, in, w.at(at.norm1), stats("norm1_stats"), d_stream, true, d.at(at.norm1),
                               d.type, accumulate);
  }

 private:
  static Offsets offsets_of(const schedule::Unit& unit, int block) {
    const auto prefix = "model.layers." + std::to_string(block) + ".";
    auto must = [&](const char* name) { return offset(unit, prefix + name); };
    auto may = [&](const char* name) { return offset(unit, prefix + name, true); };
    return {.norm1 = must("input_layernorm.weight"),
            .q = must("self_attn.q_proj.weight"),
            .k = must("self_attn.k_proj.weight"),
            .v = must("self_attn.v_proj.weight"),
            .o = must("self_attn.o_proj.weight"),
            .norm2 = must("post_attention_layernorm.weight"),
            .gate = must("mlp.gate_proj.weight"),
            .up = must("mlp.up_proj.weight"),
            .down = must("mlp.down_proj.weight"),
            .q_bias = may("self_attn.q_proj.bias"),
            .k_bias = may("self_attn.k_proj.bias"),
            .v_bias = may("self_attn.v_proj.bias"),
            .o_bias = may("self_attn.o_proj.bias"),
            .gate_bias = may("mlp.gate_proj.bias"),
            .up_bias = may("mlp.up_proj.bias"),
            .down_bias = may("mlp.down_proj.bias"),
            .q_norm = may("self_attn.q_norm.weight"),
            .k_norm = may("self_attn.k_norm.weight")};
  }

  kernels::AttentionShape attention_shape(int block, const Batch& batch, const StepContext& context) const {
    const auto& g = math_.geometry;
    return {.heads = g.heads,
            .kv_heads = g.kv_heads,
            .head_dim = g.head_dim,
            .row_q = query_,
            .row_k = key_,
            .row_v = key_,
            .row_out = query_,
            .scale = 1.0 / std::sqrt(static_cast<double>(g.head_dim)),
            .window = math_.windows[static_cast<std::size_t>(block)],
            .documents = batch.documents,
            .rows = rows(),
            .sequence = sizes_.sequence,
            .dropout = dropout(math_.attention_dropout, context, block, 1),
            .workers = sizes_.attention_workers,
            .tile_bytes = schedule::attention_tile_bytes(sizes_)};
  }

  const float* rope_table_;
  const schedule::Layout saved_, forward_, backward_;
  const std::int64_t hidden_, query_, key_, inner_;
  std::vector<Offsets> offsets_;
};

}  // namespace

std::unique_ptr<Family> make_llama(const Math& math, const schedule::Sizes& sizes,
                                   const std::vector<schedule::Unit>& units, kernels::Kernels& kernels,
                                   const float* rope_table) {
  return std::make_unique<Llama>(math, sizes, units, kernels, rope_table);
}

}  // namespace shardfit::models
