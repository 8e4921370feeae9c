// Adapters beside a frozen linear layer, as PEFT, torchtune and litgpt write them: LoRA, DoRA, IA3.
#include <algorithm>

#include "selector/memory/op_rules.hpp"

namespace shardfit::memory {

// peft/tuners/ia3/layer.py: a feed-forward module scales what it reads, any other what it gives.
bool TapeWriter::scales_input(const model::Op& op) const { return names_module(s.job.method.feedforward, op.module, op.module); }

// x.to(fp32), times the vector, back to the format it came in.
int TapeWriter::scaled_input(const model::Op& op, int x) {
  const Meta in = meta[static_cast<std::size_t>(x)];
  const int ab = s.adapters.bytes;
  Meta m = in;
  m.gathered = -1;
  m.bytes = ab;
  int z = x;
  if (ab != in.bytes) z = cast(z, m, "x to adapter format");
  TapeOp scale;
  scale.name = "ia3";
  scale.in.push(z);
  scale.saves.push(z);
  scale.weights.push({-1, op.in_features * ab});
  scale.backward_temporary = m.size();
  z = emit(scale, m);
  if (ab == in.bytes) return z;
  m.bytes = in.bytes;
  return cast(z, m, "back");
}

int TapeWriter::scaled_output(const model::Op& op, int y) {
  const Meta out = meta[static_cast<std::size_t>(y)];
  const int ab = s.adapters.bytes;
  Meta m = out;
  m.bytes = std::max(ab, out.bytes);
  TapeOp scale;
  scale.name = "ia3";
  scale.in.push(y);
  scale.saves.push(y);
  scale.weights.push({-1, op.out_features * ab});
  scale.backward_temporary = m.size();
  const int z = emit(scale, m);
  return m.bytes == out.bytes ? z : cast(z, out, "back");
}

int TapeWriter::cast(int x, const Meta& to, const char* name) {
  TapeOp op;
  op.name = name;
  op.in.push(x);
  return emit(op, to);
}

int TapeWriter::lora_dropout(int x, const Meta& m) {
  TapeOp op;
  op.name = "lora dropout";
  op.in.push(x);
  op.extra.push(m.elements());            // native_dropout keeps a byte an element
  return emit(op, m);
}

// y + lora_B(lora_A(dropout(x))) * scaling, or DoRA's form of it. `in_features`: of the weight on this rank.
int TapeWriter::lora(std::size_t index, int x, int y, std::int64_t in_features) {
  const auto& op = block.ops[index];
  const Meta in = meta[static_cast<std::size_t>(x)], out = meta[static_cast<std::size_t>(y)];
  const bool peft = s.dialect.lora == LoraStyle::kPeft;
  const int ab = s.adapters.bytes;
  const int lc = peft && !s.autocast ? ab : A;       // format of the adapter's products
  const std::int64_t r = s.adapters.rank;
  int z = x;
  Meta m = in;
  m.gathered = -1;
  if (peft && ab != in.bytes) {                      // peft/tuners/lora/layer.py: x.to(lora_A.weight.dtype)
    m.bytes = ab;
    z = cast(z, m, "x to adapter format");
  }
  if (s.adapters.dropout) z = lora_dropout(z, m);
  const int dropped = z;
  if (m.bytes != lc) {
    m.bytes = lc;
    z = cast(z, m, "autocast");
  }
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
  if (s.adapters.dora) {
    v = dora(op, dropped, y, v, in_features * out.width);
    wide = meta[static_cast<std::size_t>(v)];
  } else {
    TapeOp scaling;
    scaling.name = "* scaling";
    scaling.in.push(v);
    v = emit(scaling, wide);
  }
  TapeOp sum;
  sum.name = "base + adapter";
  sum.in.push(y);
  sum.in.push(v);
  if (wide.bytes == out.bytes) {
    sum.gradients.push(kPass);
  } else {
    sum.gradients.push(out.size());
  }
  sum.gradients.push(kPass);
  Meta both = out;
  both.bytes = std::max(wide.bytes, out.bytes);
  y = emit(sum, both);
  return both.bytes == out.bytes ? y : cast(y, out, "to activation format");
}

// peft/tuners/lora/dora.py, torchtune/modules/peft/dora.py: (m - 1) * base + m * adapter * scaling, with m the magnitude over the norm of
// the merged weight, made anew in every forward. With dropout (and always before PEFT 0.14) the base product is computed again from
// what dropout left, over a copy of the weight in the adapter's format that stays until backward.
int TapeWriter::dora(const model::Op& op, int x, int y, int v, std::int64_t weight) {
  const bool peft = s.dialect.lora == LoraStyle::kPeft;
  const int ab = s.adapters.bytes;
  const Meta out = meta[static_cast<std::size_t>(y)], wide = meta[static_cast<std::size_t>(v)];
  const bool copies = peft && ab != A;               // weight.to(x.dtype)
  const bool again = peft && (s.adapters.dropout || s.adapters.dora_again);
  // the merged weight: B(A(eye)) (PEFT), times scaling, plus the weight; its norm
  const std::int64_t norm = (3 * weight + (copies ? weight : 0)) * ab + (peft ? op.in_features * op.in_features * ab : 0);
  int base = y;
  if (again) {
    TapeOp product;
    product.name = "base again";
    product.in.push(x);
    if (copies) product.extra.push(weight * (s.autocast ? A : ab));
    Meta m = out;
    m.bytes = s.autocast ? A : ab;
    base = emit(product, m);
  }
  Meta result = wide;
  result.bytes = std::max(ab, wide.bytes);
  TapeOp scale;
  scale.name = "dora";
  scale.in.push(v);
  scale.in.push(base);
  scale.saves.push(v);
  scale.saves.push(base);
  scale.forward_temporary = std::max(2 * result.size(), norm);
  scale.backward_temporary = 2 * result.size();
  scale.weights.push({-1, op.out_features * ab});
  return emit(scale, result);
}

// litgpt/lora.py: one adapter over the packed projection, for those of q, k and v that have one.
int TapeWriter::packed_lora(std::size_t first, int x, int y) {
  const Meta in = meta[static_cast<std::size_t>(x)], out = meta[static_cast<std::size_t>(y)];
  int adapted = 0;
  std::int64_t width = 0;
  for (std::size_t j = 0; j < 3; ++j)
    if (unit.adapter[first + j] > 0) {
      ++adapted;
      width += block.ops[first + j].out_features / s.tp;
    }
  if (adapted == 0) return y;
  const std::int64_t r = s.adapters.rank;
  int z = x;
  Meta m = in;
  m.gathered = -1;
  if (s.adapters.dropout) z = lora_dropout(z, m);
  TapeOp a;
  a.name = "lora_A";
  a.in.push(z);
  a.saves.push(z);
  a.weights.push({-1, adapted * r * block.ops[first].in_features * s.adapters.bytes});
  m.width = r * adapted;
  const int u = emit(a, m);
  TapeOp b;
  b.name = "lora_B";
  b.in.push(u);
  b.saves.push(u);
  b.weights.push({-1, width * r * s.adapters.bytes});
  m.width = width;
  int v = emit(b, m);
  if (adapted < 3) {                                 // zero_pad: index_copy keeps its source
    TapeOp pad;
    pad.name = "zero_pad";
    pad.in.push(v);
    pad.saves.push(v);
    pad.forward_temporary = out.size();
    v = emit(pad, out);
  }
  TapeOp scaling;
  scaling.name = "* scaling";
  scaling.in.push(v);
  v = emit(scaling, out);
  TapeOp sum;
  sum.name = "base + adapter";
  sum.in.push(y);
  sum.in.push(v);
  sum.gradients.push(kPass);
  sum.gradients.push(kPass);
  return emit(sum, out);
}

}  // namespace shardfit::memory
