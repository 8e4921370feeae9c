// Norms: one kernel, or written out in Python, in which format and with which copies.
#include "selector/memory/op_rules.hpp"

namespace shardfit::memory {

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
  // written-out norms give back their input's format, kernels their input's or autocast's
  out.bytes = in.bytes == 4 && (s.autocast || s.norm_bytes == 4) ? 4 : A;
  out.gathered = -1;
  Meta wide = in;
  wide.bytes = 4;
  wide.gathered = -1;
  const auto to_fp32 = [&](int t) {
    if (meta[static_cast<std::size_t>(t)].bytes == 4) return t;
    TapeOp cast;
    cast.name = "to fp32";
    cast.in.push(t);
    return emit(cast, wide);
  };
  const auto to_output = [&](int t) {
    if (meta[static_cast<std::size_t>(t)].bytes == out.bytes) return t;
    TapeOp cast;
    cast.name = "to activation format";
    cast.in.push(t);
    return emit(cast, out);
  };
  // x * rsqrt(mean(x^2) + eps) in fp32
  const auto scaled = [&](int x32) {
    TapeOp scale;
    scale.name = "x * rstd";
    scale.in.push(x32);
    scale.saves.push(x32);
    scale.extra.push(rows * 4);
    scale.forward_temporary = E * 4;
    scale.backward_temporary = E * 12;       // pow's: the expanded gradient of the mean, x^1, 2 x; its product is a gradient to add
    return scale;
  };
  const auto times_weight = [&](int y, const Meta& result) {
    TapeOp times;
    times.name = "* weight";
    times.in.push(y);
    if (trained) times.saves.push(y);
    times.backward_temporary = trained ? meta[static_cast<std::size_t>(y)].size() : 0;
    times.weights = weights;
    return emit(times, result);
  };
  auto style = op.rms ? s.dialect.norm : s.dialect.layer_norm;
  if (style == NormStyle::kUpcastT5 && in.bytes == 4) style = NormStyle::kUpcast;
  switch (style) {
    case NormStyle::kUpcast: {
      const int y = to_output(emit(scaled(to_fp32(x)), wide));
      if (op.params.empty()) return y;
      Meta result = out;
      if (s.norm_bytes) result.bytes = s.norm_bytes;
      return times_weight(y, result);
    }
    case NormStyle::kUpcastT5: {             // the product takes the 16-bit input, so both are kept
      TapeOp scale = scaled(to_fp32(x));
      scale.in.push(x);
      scale.saves.push(x);
      return times_weight(to_output(emit(scale, wide)), out);
    }
    case NormStyle::kUpcastWeight: {         // the weight's product in fp32 too
      const int y = emit(scaled(to_fp32(x)), wide);
      return to_output(op.params.empty() ? y : times_weight(y, wide));
    }
    case NormStyle::kUpcastKernel: {         // the kernel on an fp32 copy
      const int x32 = to_fp32(x);
      TapeOp kernel;
      kernel.name = "norm";
      kernel.in.push(x32);
      kernel.saves.push(x32);
      kernel.extra.push(rows * 8);
      kernel.weights = weights;
      return to_output(emit(kernel, wide));
    }
    case NormStyle::kComposite: {
      TapeOp scale = scaled(to_fp32(x));
      scale.forward_temporary = E * 8;
      return times_weight(emit(scale, out), out);
    }
    case NormStyle::kTwoStep: {
      TapeOp scale;
      scale.name = "x * rstd";
      scale.in.push(x);
      scale.saves.push(x);
      scale.extra.push(rows * 2);
      scale.forward_temporary = E * A;
      scale.backward_temporary = 2 * E * A;
      return times_weight(emit(scale, out), out);
    }
    case NormStyle::kFused: break;
  }
  // autocast runs layer_norm in fp32; llm-foundry's low_precision_layernorm leaves autocast for its norms
  const auto low = s.model.facts.find("low_precision_layernorm");
  if (s.autocast && !op.rms && (low == s.model.facts.end() || low->second == 0 || s.trainer == "transformers")) {
    x = to_fp32(x);
    out.bytes = 4;
  }
  TapeOp fused;
  fused.name = "norm";
  fused.in.push(x);
  fused.saves.push(x);
  fused.extra.push(rows * 8);
  fused.weights = weights;
  return emit(fused, out);
}

}  // namespace shardfit::memory
