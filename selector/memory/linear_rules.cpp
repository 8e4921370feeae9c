// Linear layers with quantised weights and casts (their adapters: lora_rules.cpp); norms.
#include <algorithm>

#include "selector/memory/op_rules.hpp"

namespace shardfit::memory {

std::int64_t TapeWriter::weight_gradient(std::int64_t elements) const {
  return s.dialect.weight_gradient_fused ? 0 : elements * s.weight_gradient_bytes;
}

int TapeWriter::emit(TapeOp op, const Meta& m) {
  op.recomputed = recomputing_;
  const int t = tape.add(op, m.size());
  meta.resize(tape.tensors.size());
  meta[static_cast<std::size_t>(t)] = m;
  return t;
}

// What a trained linear layer keeps of its input: the tensor, or an FP8 copy of it.
void TapeWriter::keep_input(TapeOp& product, int x) {
  if (s.fp8_input_bytes <= 0) {
    product.saves.push(x);
  } else if (std::find(kept_in_fp8.begin(), kept_in_fp8.end(), x) == kept_in_fp8.end()) {   // gate and up projection are one layer
    product.extra.push(static_cast<std::int64_t>(static_cast<double>(meta[static_cast<std::size_t>(x)].elements()) * s.fp8_input_bytes));
    kept_in_fp8.push_back(x);
  }
}

int TapeWriter::gather_sequence(int x) {
  auto& m = meta[static_cast<std::size_t>(x)];
  if (!m.sharded) return x;
  if (m.gathered >= 0) return m.gathered;
  Meta full = m;
  full.positions *= s.tp;
  full.sharded = false;
  full.gathered = -1;
  TapeOp op;
  op.name = "all-gather";
  op.collective = true;
  op.in.push(x);
  const int y = emit(op, full);
  meta[static_cast<std::size_t>(x)].gathered = y;
  return y;
}

// After a row-parallel product: all-reduce in place, or reduce-scatter over the sequence.
int TapeWriter::row_parallel_end(int y, bool last) {
  auto m = meta[static_cast<std::size_t>(y)];
  if (!s.sequence_parallel) return y;
  m.positions /= s.tp;
  m.sharded = true;
  TapeOp op;
  op.name = "reduce-scatter";
  op.collective = true;
  op.in.push(y);
  // Nothing needs the block's last one. Compiled code of torch 2.6 kept it all the same, that of 2.11 does not (both run with the
  // golden steps of torchtitan; where between is not known).
  const bool dropped = last && !s.dialect.policy_keeps_last && s.torch_date >= 20251015;
  op.kept_by_policy = s.policy_keeps_reduce_scatter && !dropped;
  return emit(op, m);
}

bool TapeWriter::is_last_linear(std::size_t index) const {
  for (std::size_t k = index + 1; k < block.ops.size(); ++k)
    if (block.ops[k].kind == model::OpKind::kLinear || block.ops[k].kind == model::OpKind::kExperts) return false;
  return true;
}

int TapeWriter::linear(std::size_t index, int x) {
  const auto& op = block.ops[index];
  const bool replicated = op.module.find("q_a_proj") != std::string::npos || op.module.find("kv_a_proj") != std::string::npos || op.module == "eh_proj" || op.kind == model::OpKind::kRouter;
  const bool row = s.tp > 1 && meta[static_cast<std::size_t>(x)].split;
  const bool column = s.tp > 1 && !row && !replicated;
  // Megatron keeps its part of the sequence and gathers again in backward (tensor_parallel/layers.py); DTensor keeps the whole
  const int part = s.engine == Engine::kMegatron && column && meta[static_cast<std::size_t>(x)].sharded ? x : -1;
  if (column) x = gather_sequence(x);
  if (s.autocast && meta[static_cast<std::size_t>(x)].bytes == 4 && A == 2) {
    TapeOp cast;
    cast.name = "autocast";
    cast.in.push(x);
    Meta m = meta[static_cast<std::size_t>(x)];
    m.bytes = A;
    x = emit(cast, m);
  }
  const Meta in = meta[static_cast<std::size_t>(x)];
  const std::int64_t in_features = row ? op.in_features / s.tp : op.in_features;
  const std::int64_t out_features = column ? op.out_features / s.tp : op.out_features;
  Meta out;
  out.positions = in.positions;
  out.width = out_features;
  out.bytes = A;
  out.split = column;
  out.sharded = in.sharded;
  const int weight = op.params.empty() ? -1 : op.params[0];
  const bool trained = trains(weight);
  const bool quantized = weight >= 0 && unit.roles[static_cast<std::size_t>(weight)].quantized;
  if (unit.adapter[index] > 0 && s.adapters.ia3 && scales_input(op)) x = scaled_input(op, x);
  TapeOp product;
  product.name = op.module.c_str();
  product.in.push(x);
  // torchtitan's policy keeps every second matmul; compiled, what nothing needs is dropped again: here the last product of the block
  product.kept_by_policy = (++matmuls % 2 == 1 || s.policy_keeps_every) && (s.dialect.policy_keeps_last || !is_last_linear(index));
  if (quantized) {
    // bitsandbytes makes the whole weight in compute format, for the product and again for its gradient
    product.forward_temporary = product.backward_temporary = in_features * out_features * A;
    if (s.job.method.quantization == job::DType::kInt8) {
      // LLM.int8 (bitsandbytes autograd/_functions.py MatMul8bitLt): int8 input, int32 product and its 16-bit form; the input is kept
      product.forward_temporary = in.elements() + out.elements() * 6;
      product.saves.push(x);
    }
    if (s.dialect.quantized_saves_input && s.job.method.quantization != job::DType::kInt8) product.saves.push(x);
    if (s.quantized_context) tape.context.push_back(tape.base(x));
    if (s.mlp_bytes && op.module.find("mlp") != std::string::npos) out.bytes = s.mlp_bytes;
  } else if (trained) {
    keep_input(product, part >= 0 ? part : x);
    if (part >= 0) product.backward_temporary = in.size();
    product.weights.push({weight, weight_gradient(in_features * out_features)});
    if (s.autocast_cache && s.weight_gradient_bytes > A) product.backward_temporary += in_features * out_features * A;   // before its cast
    if (op.params.size() > 1 && trains(op.params[1])) product.weights.push({op.params[1], out_features * s.weight_gradient_bytes});
  }
  if (s.policy_keeps_abs && trained) {   // torchao's eager amax: torch.max(torch.abs(t)) of input and weight; the policy keeps both
    for (const std::int64_t elements : {in.elements(), in_features * out_features}) {
      TapeOp amax;
      amax.name = "abs";
      amax.kept_by_policy = true;
      tape.add(amax, elements * A);
      meta.resize(tape.tensors.size());
    }
  }
  int y = emit(product, out);
  if (unit.adapter[index] > 0) {
    if (!s.adapters.ia3) y = lora(index, x, y, in_features);
    else if (!scales_input(op)) y = scaled_output(op, y);
  }
  return row ? row_parallel_end(y, is_last_linear(index)) : y;
}

// q, k and v as one product, where the trainer's code packs them although the published model has three.
bool TapeWriter::packed_projection(std::size_t first, std::size_t& next) {
  if (!s.dialect.packs_qkv || first + 2 >= block.ops.size()) return false;
  using K = model::OpKind;
  const auto& q = block.ops[first];
  const auto& k = block.ops[first + 1];
  const auto& v = block.ops[first + 2];
  if (q.kind != K::kLinear || k.kind != K::kLinear || v.kind != K::kLinear || q.in != k.in || k.in != v.in) return false;
  const auto ends = [](const std::string& name, const char* end) { return name.size() >= 6 && name.compare(name.size() - 6, 6, end) == 0; };
  if (!ends(q.module, "q_proj") || !ends(k.module, "k_proj") || !ends(v.module, "v_proj")) return false;
  next = first + 3;
  recomputing_ = recomputed(q);
  int x = of[static_cast<std::size_t>(q.in[0])];
  const int part = s.engine == Engine::kMegatron && meta[static_cast<std::size_t>(x)].sharded ? x : -1;
  if (s.tp > 1) x = gather_sequence(x);
  if (s.autocast && meta[static_cast<std::size_t>(x)].bytes == 4 && A == 2) {
    TapeOp cast;
    cast.name = "autocast";
    cast.in.push(x);
    Meta m = meta[static_cast<std::size_t>(x)];
    m.bytes = A;
    x = emit(cast, m);
  }
  const Meta in = meta[static_cast<std::size_t>(x)];
  const std::int64_t qw = q.out_features / s.tp, kw = k.out_features / s.tp, packed = qw + 2 * kw;
  const int weight = q.params.empty() ? -1 : q.params[0];
  const bool trained = trains(weight), quantized = weight >= 0 && unit.roles[static_cast<std::size_t>(weight)].quantized;
  TapeOp product;
  product.name = "qkv";
  product.in.push(x);
  product.kept_by_policy = true;
  matmuls += 1;
  Meta out = in;
  out.gathered = -1;
  out.width = packed;
  out.bytes = A;
  out.split = s.tp > 1;
  out.sharded = false;
  if (trained || (quantized && s.dialect.quantized_saves_input)) keep_input(product, part >= 0 ? part : x);
  if (part >= 0) product.backward_temporary = in.size();
  if (quantized) product.forward_temporary = product.backward_temporary = packed * q.in_features * A;
  if (quantized && s.quantized_context) tape.context.push_back(tape.base(x));
  if (trained) {
    product.weights.push({-2, weight_gradient(packed * q.in_features)});
    if (q.params.size() > 1 && trains(q.params[1])) product.weights.push({-2, packed * s.weight_gradient_bytes});
  }
  int y = emit(product, out);
  y = packed_lora(first, x, y);
  // q, k, v: views where the code leaves them so; copies where grouped heads are taken apart
  auto piece = [&](std::int64_t w) {
    Meta m = out;
    m.width = w;
    if (s.dialect.packed_views || kw == qw) {
      const int t = tape.view(y);
      meta.resize(tape.tensors.size());
      meta[static_cast<std::size_t>(t)] = m;
      return t;
    }
    return -1;
  };
  const bool views = s.dialect.packed_views || kw == qw;
  if (views) {
    TapeOp split;
    split.name = "split";
    split.in.push(y);
    const int a = piece(qw), b = piece(kw), c = piece(kw);
    split.out = a;
    split.more_outs.push(b);
    split.more_outs.push(c);
    tape.add(split, 0);
    of[static_cast<std::size_t>(q.outs[0])] = a;
    of[static_cast<std::size_t>(k.outs[0])] = b;
    of[static_cast<std::size_t>(v.outs[0])] = c;
  } else {
    const std::int64_t grad = out.size();
    auto copy = [&](const char* name, std::int64_t w) {
      TapeOp c;
      c.name = name;
      c.in.push(y);
      c.gradients.push(grad);
      Meta m = out;
      m.width = w;
      return emit(c, m);
    };
    const std::int64_t kk = s.dialect.repeats_kv ? qw : kw;
    of[static_cast<std::size_t>(q.outs[0])] = copy("q copy", qw);
    of[static_cast<std::size_t>(k.outs[0])] = copy("k copy", kk);
    of[static_cast<std::size_t>(v.outs[0])] = copy("v copy", kk);
  }
  return true;
}

}  // namespace shardfit::memory
