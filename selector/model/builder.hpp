// Writes one Block in the order in which the model's forward runs:
//
//   Builder b("LlamaDecoderLayer", "model.layers.{}", hidden);
//   TensorId x = b.input();
//   TensorId n = b.rms_norm("input_layernorm", x);
//   TensorId q = b.linear("self_attn.q_proj", n, heads * head_dim);
//   ...
//   x = b.residual(x, b.linear("self_attn.o_proj", attended, hidden));
//   Block block = b.finish(x);
//
// Conventions that readers of the graph (memory, time, runtime) rely on:
// - Tensors are values, not storages: a reshape or transpose is no operator. A kSplit gives views of its input; a kConcat is a new
//   tensor. The graph says what the eager Hugging Face code computes; fusions are the reader's.
// - Embedding block: tensors[input] are the token ids (width 1). kPositionEmbedding takes the embedded tokens and adds a table row.
// - A kLinear without a weight among its params is an output projection tied to the token table; in_features and out_features say
//   its size; a bias of its own may still be there.
// - kAttention takes {q, k, v}, already rotated, k and v with kv_heads (no repetition), and gives heads x value_head_dim; params:
//   sinks or the relative bias table where the model has them.
// - kRouter gives top_k weights a token. kExperts takes {hidden, weights} and gives hidden; its params are expert by expert in the
//   order of the published file. A shared expert is made of operators of its own (MoeShape.shared_intermediate is its width).
// - A tensor that nothing produces and that is not the input comes from outside the block: the encoder's output in a decoder block
//   with cross attention (Space::kEncoderTokens), keys and values of an earlier layer or a per-layer embedding in Gemma 4.
// - Dropout stands where the code has one, also at p = 0, so that a job can set it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "selector/model/model.hpp"

namespace shardfit::model {

class Builder {
 public:
  Builder(std::string class_name, std::string prefix, std::int64_t input_width, Space space = Space::kTokens);

  TensorId input() const { return 0; }
  std::int64_t width(TensorId x) const { return block_.tensors[static_cast<std::size_t>(x)].width; }
  TensorId external(std::string name, std::int64_t width, Space space);  // comes from outside the block
  int parameter(std::string name, std::string module, std::vector<std::int64_t> shape, Parameter::Kind kind);

  TensorId embedding(const std::string& module, TensorId ids, std::int64_t rows, std::int64_t width);
  TensorId position_embedding(const std::string& module, TensorId x, std::int64_t rows);
  TensorId linear(const std::string& module, TensorId x, std::int64_t out, bool bias = false);
  TensorId conv1d(const std::string& module, TensorId x, std::int64_t out);  // GPT-2's layer: weight [in, out], always a bias
  TensorId tied_linear(const std::string& module, TensorId x, std::int64_t out, const std::string& bias_name = "");
  TensorId rms_norm(const std::string& module, TensorId x, std::int64_t group = 0, bool weight = true);  // group 0: the whole width
  TensorId layer_norm(const std::string& module, TensorId x, bool bias = true, std::int64_t group = 0);
  TensorId rope(const std::string& name, TensorId x, double fraction = 1);
  TensorId attention(const std::string& module, TensorId q, TensorId k, TensorId v, const AttentionShape& shape, std::vector<int> params = {});
  TensorId activation(const std::string& name, TensorId x, Activation kind);
  TensorId gated_activation(const std::string& name, TensorId gate, TensorId up, Activation kind);
  TensorId multiply(const std::string& name, TensorId a, TensorId b);
  TensorId add(const std::string& name, TensorId a, TensorId b);
  TensorId residual(TensorId x, TensorId branch);
  TensorId scale(const std::string& name, TensorId x, std::vector<int> params = {});
  TensorId dropout(const std::string& module, TensorId x, double p);
  TensorId concat(const std::string& name, const std::vector<TensorId>& parts, std::int64_t width = 0);  // 0: the sum of the parts
  std::vector<TensorId> split(const std::string& name, TensorId x, const std::vector<std::int64_t>& widths);
  TensorId router(const std::string& module, TensorId x, const MoeShape& shape, std::vector<int> params);
  TensorId experts(const std::string& module, TensorId x, TensorId weights, const MoeShape& shape, std::vector<int> params);
  TensorId pooler(const std::string& module, TensorId x);  // first token -> dense -> tanh, one a sequence
  TensorId first_token(TensorId x);                        // one position a sequence, no weights

  // The last operator, for the rare member that no call above takes.
  Op& last() { return block_.ops.back(); }
  void fused_targets(std::vector<std::string> names) { last().fused_targets = std::move(names); }

  Op& op(OpKind kind, const std::string& module, std::vector<TensorId> in, std::int64_t out_width, Space space);
  TensorId result() const { return block_.ops.back().outs.front(); }

  Block finish(TensorId output);

 private:
  Space space(TensorId x) const { return block_.tensors[static_cast<std::size_t>(x)].space; }
  TensorId tensor(std::string name, std::int64_t width, Space space);
  TensorId simple(OpKind kind, const std::string& name, std::vector<TensorId> in);  // result as wide as the first input

  Block block_;
};

}  // namespace shardfit::model
