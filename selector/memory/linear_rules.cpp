// Linear layers with their adapters, quantised weights and casts; norms.
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
int TapeWriter::row_parallel_end(int y) {
  auto m = meta[static_cast<std::size_t>(y)];
  if (!s.sequence_parallel) return y;
  m.positions /= s.tp;
  m.sharded = true;
  TapeOp op;
  op.name = "reduce-scatter";
  op.collective = true;
  op.in.push(y);
  op.kept_by_policy = s.policy_keeps_reduce_scatter;
  return emit(op, m);
}

int TapeWriter::norm(const model::Op& op, int x) {
  const Meta in = meta[static_cast<std::size_t>(x)];
  const std::int64_t E = in.elements();
  const std::int64_t rows = op.group > 0 && in.width > 0 ? in.positions * (in.width / op.group > 0 ? in.width / op.group : 1) : in.positions;
  bool trained = false;
  SmallList<WeightGradient, 6> weights;
  for (int p : op.params)
    if (trains(p)) {
      trained = true;
      weights.push({p, block.parameters[static_cast<std::size_t>(p)].elements() * s.weight_gradient_bytes});
    }
  Meta out = in;
  out.bytes = A;
  out.gathered = -1;
  const auto style = op.rms ? s.dialect.norm : NormStyle::kFused;
  if (style == NormStyle::kUpcast || style == NormStyle::kComposite) {
    int x32 = x;
    if (in.bytes != 4) {
      TapeOp cast;
      cast.name = "to fp32";
      cast.in.push(x);
      Meta m = in;
      m.bytes = 4;
      m.gathered = -1;
      x32 = emit(cast, m);
    }
    TapeOp scale;
    scale.name = "x * rstd";
    scale.in.push(x32);
    scale.saves.push(x32);
    scale.extra.push(rows * 4);
    int y;
    if (style == NormStyle::kUpcast) {
      scale.forward_temporary = E * 4;
      scale.backward_temporary = E * 12;     // pow's: the expanded gradient of the mean, x^1, 2 x; its product is a gradient to add
      Meta m = in;
      m.bytes = 4;
      m.gathered = -1;
      const int y32 = emit(scale, m);
      TapeOp back;
      back.name = "to activation format";
      back.in.push(y32);
      y = emit(back, out);
    } else {
      scale.forward_temporary = E * 8;
      scale.backward_temporary = E * 12;
      y = emit(scale, out);
    }
    TapeOp times;
    times.name = "* weight";
    times.in.push(y);
    if (trained) times.saves.push(y);
    times.backward_temporary = trained ? E * A : 0;
    times.weights = weights;
    if (s.norm_bytes) out.bytes = s.norm_bytes;
    return emit(times, out);
  }
  if (style == NormStyle::kTwoStep) {
    TapeOp scale;
    scale.name = "x * rstd";
    scale.in.push(x);
    scale.saves.push(x);
    scale.extra.push(rows * 2);
    scale.forward_temporary = E * A;
    scale.backward_temporary = 2 * E * A;
    const int y = emit(scale, out);
    TapeOp times;
    times.name = "* weight";
    times.in.push(y);
    if (trained) times.saves.push(y);
    times.backward_temporary = trained ? E * A : 0;
    times.weights = weights;
    return emit(times, out);
  }
  TapeOp fused;
  fused.name = "norm";
  fused.in.push(x);
  fused.saves.push(x);
  fused.extra.push(rows * 8);
  fused.weights = weights;
  if (s.autocast && !op.rms) out.bytes = 4;        // autocast runs layer_norm in fp32
  return emit(fused, out);
}

bool TapeWriter::is_last_linear(std::size_t index) const {
  for (std::size_t k = index + 1; k < block.ops.size(); ++k)
    if (block.ops[k].kind == model::OpKind::kLinear || block.ops[k].kind == model::OpKind::kExperts) return false;
  return true;
}

int TapeWriter::linear(std::size_t index, int x) {
  const auto& op = block.ops[index];
  const bool replicated = op.module.find("q_a_proj") != std::string::npos || op.module.find("kv_a_proj") != std::string::npos || op.kind == model::OpKind::kRouter;
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
  TapeOp product;
  product.name = op.module.c_str();
  product.in.push(x);
  // torchtitan's policy keeps every second matmul; compiled, what nothing needs is dropped again: here the last product of the block
  product.kept_by_policy = (++matmuls % 2 == 1 || s.policy_keeps_every) && (s.dialect.policy_keeps_last || !is_last_linear(index));
  if (quantized) {
    // bitsandbytes makes the whole weight in compute format, for the product and again for its gradient
    product.forward_temporary = product.backward_temporary = in_features * out_features * A;
    if (s.dialect.quantized_saves_input) product.saves.push(x);
    if (s.quantized_context) tape.context.push_back(tape.base(x));
    if (s.mlp_bytes && op.module.find("mlp") != std::string::npos) out.bytes = s.mlp_bytes;
  } else if (trained) {
    product.saves.push(part >= 0 ? part : x);
    if (part >= 0) product.backward_temporary = in.size();
    product.weights.push({weight, weight_gradient(in_features * out_features)});
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
    const int c = s.autocast ? A : s.adapters.bytes;
    const int ab = s.adapters.bytes;
    const std::int64_t r = s.adapters.rank;
    if (s.adapters.ia3) {
      TapeOp scale;
      scale.name = "ia3";
      scale.in.push(y);
      scale.saves.push(y);
      scale.weights.push({-1, op.out_features * ab});
      return row ? row_parallel_end(emit(scale, out)) : emit(scale, out);
    }
    int z = x;
    Meta m = in;
    m.gathered = -1;
    if (s.dialect.lora == LoraStyle::kPeft) {
      if (ab != A) {
        TapeOp cast;
        cast.name = "x to adapter format";
        cast.in.push(z);
        m.bytes = ab;
        z = emit(cast, m);
      }
      if (s.adapters.dropout) {
        TapeOp drop;
        drop.name = "lora dropout";
        drop.in.push(z);
        drop.extra.push(in.elements());
        m.bytes = ab;
        z = emit(drop, m);
      }
      if (s.autocast && ab != A) {
        TapeOp cast;
        cast.name = "autocast";
        cast.in.push(z);
        m.bytes = A;
        z = emit(cast, m);
      }
    } else if (s.adapters.dropout) {
      TapeOp drop;
      drop.name = "lora dropout";
      drop.in.push(z);
      drop.extra.push(in.elements());
      z = emit(drop, m);
    }
    const int lc = s.dialect.lora == LoraStyle::kPeft ? c : A;
    TapeOp a;
    a.name = "lora_A";
    a.in.push(z);
    a.saves.push(z);
    a.weights.push({-1, r * op.in_features * ab});
    Meta narrow = in;
    narrow.gathered = -1;
    narrow.width = r;
    narrow.bytes = lc;
    const int u = emit(a, narrow);
    TapeOp b;
    b.name = "lora_B";
    b.in.push(u);
    b.saves.push(u);
    b.weights.push({-1, r * op.out_features * ab});
    Meta wide = out;
    wide.bytes = lc;
    int v = emit(b, wide);
    if (s.adapters.dora) {               // the norm of the merged weight, and the product scaled by magnitude / norm
      TapeOp magnitude;
      magnitude.name = "dora";
      magnitude.in.push(v);
      magnitude.in.push(y);
      magnitude.saves.push(v);
      magnitude.saves.push(y);
      magnitude.forward_temporary = 2 * in_features * out_features * lc;
      magnitude.weights.push({-1, op.out_features * ab});
      v = emit(magnitude, wide);
    }
    TapeOp scaling;
    scaling.name = "* scaling";
    scaling.in.push(v);
    v = emit(scaling, wide);
    TapeOp sum;
    sum.name = "base + adapter";
    sum.in.push(y);
    sum.in.push(v);
    if (lc == A) {
      sum.gradients.push(kPass);
    } else {
      sum.gradients.push(out.elements() * A);
    }
    sum.gradients.push(kPass);
    Meta both = out;
    both.bytes = lc > out.bytes ? lc : out.bytes;
    y = emit(sum, both);
    if (both.bytes != out.bytes) {
      TapeOp cast;
      cast.name = "to activation format";
      cast.in.push(y);
      y = emit(cast, out);
    }
  }
  return row ? row_parallel_end(y) : y;
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
  if (trained || (quantized && s.dialect.quantized_saves_input)) product.saves.push(part >= 0 ? part : x);
  if (part >= 0) product.backward_temporary = in.size();
  if (quantized) product.forward_temporary = product.backward_temporary = packed * q.in_features * A;
  if (quantized && s.quantized_context) tape.context.push_back(tape.base(x));
  if (trained) {
    product.weights.push({-2, weight_gradient(packed * q.in_features)});
    if (q.params.size() > 1 && trains(q.params[1])) product.weights.push({-2, packed * s.weight_gradient_bytes});
  }
  int y = emit(product, out);
  int adapted = 0;
  std::int64_t width = 0;
  for (std::size_t j = 0; j < 3; ++j)
    if (unit.adapter[first + j] > 0) {
      ++adapted;
      width += j == 0 ? qw : kw;
    }
  if (adapted > 0) {
    const std::int64_t r = s.adapters.rank;
    int z = x;
    Meta m = in;
    m.gathered = -1;
    if (s.adapters.dropout) {
      TapeOp drop;
      drop.name = "lora dropout";
      drop.in.push(z);
      drop.extra.push(in.elements());
      z = emit(drop, m);
    }
    TapeOp a;
    a.name = "lora_A";
    a.in.push(z);
    a.saves.push(z);
    a.weights.push({-1, adapted * r * q.in_features * s.adapters.bytes});
    m.width = r * adapted;
    const int u = emit(a, m);
    TapeOp b;
    b.name = "lora_B";
    b.in.push(u);
    b.saves.push(u);
    b.weights.push({-1, width * r * s.adapters.bytes});
    m.width = width;
    int v2 = emit(b, m);
    if (adapted < 3) {                   // zero_pad: index_copy keeps its source
      TapeOp pad;
      pad.name = "zero_pad";
      pad.in.push(v2);
      pad.saves.push(v2);
      pad.forward_temporary = out.size();
      v2 = emit(pad, out);
    }
    TapeOp scaling;
    scaling.name = "* scaling";
    scaling.in.push(v2);
    v2 = emit(scaling, out);
    TapeOp sum;
    sum.name = "base + adapter";
    sum.in.push(y);
    sum.in.push(v2);
    sum.gradients.push(kPass);
    sum.gradients.push(kPass);
    y = emit(sum, out);
  }
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
