// The end of the model: final norm, output projection and the loss, by the trainer's rules.
#include <algorithm>

#include "selector/memory/op_rules.hpp"

namespace shardfit::memory {
namespace {

using Kind = LossRules::Kind;
using Float = LossRules::Float;

std::int64_t next_power_of_two(std::int64_t n) {
  std::int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}

struct LossWriter {
  const Setup& s;
  Tape& tape;
  int A;

  int emit(TapeOp op, std::int64_t bytes) {
    op.term = Term::kLogits;
    return tape.add(op, bytes);
  }
  void hold(int t) { tape.tensors[static_cast<std::size_t>(t)].hold = true; }

  // Liger and its like: the head runs in chunks of rows inside the loss; the forward already makes both gradients.
  int fused_linear(int hidden, std::int64_t n, std::int64_t h, std::int64_t V, bool head_trains) {
    const std::int64_t rows = (n + std::max<std::int64_t>(1, (V + h - 1) / h) - 1) / std::max<std::int64_t>(1, (V + h - 1) / h);
    const std::int64_t chunk = std::min(next_power_of_two(rows), n) * V;
    const std::int64_t weight = head_trains ? V * h * s.weight_gradient_bytes : 0;
    TapeOp op;
    op.name = "fused linear loss";
    op.in.push(hidden);
    op.gradients.push(0);
    // logits, their fp32 copy, and the 16-bit gradient of the chunk before (a Python local of the loop); beside them the gradients of
    // hidden states and weight, which stay, and one chunk's part of the weight's
    op.forward_temporary = chunk * (2 + 4 + 2) + n * h * A + weight + (head_trains ? V * h * A : 0);
    op.extra.push(n * h * A);
    if (weight) {
      op.extra.push(weight);
      op.weights.push({-2, weight});
    }
    return emit(op, 512);
  }

  int logits_loss(int logits, std::int64_t n, std::int64_t E) {
    const auto& L = s.loss;
    tape.model_output = logits;
    if (L.holds_logits) hold(logits);
    int z = logits;
    switch (L.kind) {
      case Kind::kFused: {              // Triton: the gradient is written over the logits it was given
        if (L.to_float != Float::kNone) z = to_float(z, E);
        if (L.holds_float) hold(z);
        if (L.shift_copy) z = copy("shift", z);
        TapeOp op;
        op.name = "fused cross entropy";
        op.in.push(z);
        op.saves.push(z);
        op.gradients.push(0);
        op.extra.push(n * 4);
        return emit(op, 512);
      }
      case Kind::kMegatron:
      case Kind::kMegatronFused: {      // vocab_parallel_cross_entropy: fp32 softmax kept, the gradient written into it
        hold(logits);
        if (L.kind == Kind::kMegatronFused) {   // compiled: the in-place exp becomes one more fp32 copy
          TapeOp f;
          f.name = "to fp32";
          f.in.push(logits);
          f.gradients.push(kPass);
          z = emit(f, E * 4);
          hold(z);
        }
        TapeOp op;
        op.name = "vocabulary cross entropy";
        op.in.push(z);
        op.extra.push(E * 4);
        op.extra.push(n * 12);
        op.gradients.push(E * A);
        return emit(op, 512);
      }
      case Kind::kCompiled: {           // inductor: one pass over 16-bit logits
        TapeOp op;
        op.name = "compiled cross entropy";
        op.in.push(logits);
        op.saves.push(logits);
        op.extra.push(n * 8);
        op.gradients.push(E * A);
        return emit(op, 512);
      }
      case Kind::kChunked: {
        if (L.to_float == Float::kModel) z = to_float(z, E);
        TapeOp op;
        op.name = "chunked cross entropy";
        op.in.push(z);
        if (L.saves_logits) op.saves.push(z);
        const std::int64_t C = std::max<std::int64_t>(1, L.chunks);
        op.extra.push(E * L.log_probability);   // of all chunks together
        op.backward_temporary = E * (L.log_probability + (L.log_probability == 4 ? 4 : 0)) / C;
        op.gradients.push(L.gradient_in_place ? tape.bytes(z) / C : E * A);
        return emit(op, 512);
      }
      default: break;
    }
    if (L.to_float != Float::kNone) z = to_float(z, E);
    if (L.holds_float) hold(z);
    if (L.shift_copy) {
      z = copy("shift", z);
      tape.ops.back().backward_temporary = tape.bytes(z);
    }
    if (s.autocast && !s.trainer.empty() && L.to_float == Float::kNone) z = to_float(z, E);   // autocast takes log_softmax in fp32
    TapeOp soft;
    soft.name = "log_softmax";
    soft.in.push(z);
    soft.gradients.push(tape.bytes(z));
    soft.saves.push(static_cast<int>(tape.tensors.size()));
    // Loss over a vocabulary that tensor parallelism splits (torch/distributed/tensor/parallel/loss.py): written out, with one copy
    // more in either direction: the shifted logits, exp of the result. A traced graph lets go of each as soon as it is used.
    if (s.tp > 1 && s.graph == Setup::Graph::kNone) soft.forward_temporary = soft.backward_temporary = tape.bytes(z);
    z = emit(soft, tape.bytes(z));
    TapeOp nll;
    nll.name = "nll";
    nll.in.push(z);
    nll.extra.push(n * 8);
    return emit(nll, 512);
  }

  int to_float(int z, std::int64_t E) {
    if (A == 4) return z;
    TapeOp op;
    op.name = "to fp32";
    op.in.push(z);
    op.gradients.push(E * A);
    const int result = emit(op, E * 4);
    if (s.loss.to_float == Float::kModel) tape.model_output = result;
    return result;
  }
  int copy(const char* name, int z) {
    TapeOp op;
    op.name = name;
    op.in.push(z);
    return emit(op, tape.bytes(z));
  }
};

}  // namespace

Tape head_tape(const Setup& s, const UnitSizes& unit, const BlockShape& shape) {
  // Everything of the head block but the output projection goes by the ordinary rules; the projection and the loss follow here.
  const model::Block& head = s.model.head;
  std::size_t projection = head.ops.size();
  for (std::size_t k = head.ops.size(); k-- > 0;)
    if (head.ops[k].kind == model::OpKind::kLinear && head.ops[k].out_features >= s.model.vocabulary && s.model.vocabulary > 0) {
      projection = k;
      break;
    }
  if (projection == head.ops.size()) return block_tape(s, head, unit, shape);   // classifier or pooler: no logits over a vocabulary

  model::Block before = head;
  before.ops.resize(projection);
  before.output = head.ops[projection].in[0];
  UnitSizes of_before = unit;
  TapeWriter writer(s, before, of_before, shape);
  const Tape norm = writer.write();
  Tape tape = norm;
  const auto& op = head.ops[projection];
  int hidden = norm.output;
  const std::int64_t n = shape.tokens, h = op.in_features;
  const int A = s.compute_bytes;
  if (s.sequence_parallel) {
    TapeOp gather;
    gather.name = "all-gather";
    gather.in.push(hidden);
    hidden = tape.add(gather, n * h * A);
  }
  tape.tensors[static_cast<std::size_t>(hidden)].hold = true;
  if (s.autocast && A == 2 && tape.bytes(hidden) > n * h * A) {
    TapeOp cast;
    cast.name = "autocast";
    cast.in.push(hidden);
    hidden = tape.add(cast, n * h * A);
  }
  const std::int64_t V = s.padded_vocabulary() / s.tp;
  const std::int64_t E = n * V;
  const int weight = op.params.empty() ? -1 : op.params[0];
  bool trained = weight >= 0 && unit.roles[static_cast<std::size_t>(weight)].trainable;
  const bool tied = op.params.empty() || head.parameters[static_cast<std::size_t>(op.params[0])].shape.size() < 2;
  if (tied) trained = s.job.method.kind == job::MethodKind::kFull;
  LossWriter loss{s, tape, A};
  int end;
  if (s.loss.kind == Kind::kFusedLinear) {
    end = loss.fused_linear(hidden, n, h, V, trained);
  } else {
    const std::int64_t C = std::max<std::int64_t>(1, s.loss.chunks);
    TapeOp product;
    product.name = "output projection";
    product.in.push(hidden);
    const std::int64_t wg = V * h * s.weight_gradient_bytes;
    if (trained) {
      product.saves.push(hidden);
      product.weights.push({-2, s.dialect.weight_gradient_fused ? 0 : wg});
      if (s.autocast_cache && s.weight_gradient_bytes > A) product.backward_temporary = V * h * A;   // before its cast to fp32
    }
    // Calibrated over the nf4 rows of litgpt's tables (nine models): bitsandbytes stands in for every nn.Linear, the output projection
    // too, and one more table in compute format is alive around the loss than weights and activations explain.
    if (s.quantized && s.trainer == "litgpt") product.extra.push(V * h * A);
    // a list of logit chunks: every chunk's loss runs backward before the first product does, so all their gradients exist, and each
    // chunk makes a weight gradient of its own to add
    const bool list = s.loss.kind == Kind::kChunked && s.loss.gradient_in_place && s.loss.to_float == Float::kNone;
    if (list) product.backward_temporary = (E * A - E * A / C) + (trained ? wg : 0);
    if (s.loss.over_hidden) {            // logits for one chunk at a time, forward and (recomputed) backward
      product.forward_temporary = 0;
      product.backward_temporary = E * (A + 4 + 4) / C + (trained ? wg : 0);
      product.gradients.push(n * h * A);
      product.forward_temporary = E * (A + 4 + 4) / C;
      product.extra.push(n * h * A);
      product.term = Term::kLogits;
      end = tape.add(product, 512);
    } else {
      product.term = Term::kLogits;
      tape.projection = static_cast<int>(tape.ops.size());
      int logits = tape.add(product, E * A);
      for (std::size_t k = projection + 1; k < head.ops.size(); ++k) {   // Gemma's cap: logits / c, tanh, * c, each a table
        TapeOp each;
        each.name = "softcap";
        each.in.push(logits);
        if (head.ops[k].kind == model::OpKind::kActivation) each.saves.push(static_cast<int>(tape.tensors.size()));
        each.term = Term::kLogits;
        logits = tape.add(each, E * A);
      }
      end = loss.logits_loss(logits, n, E);
    }
  }
  const int at = tape.projection >= 0 ? tape.projection : static_cast<int>(tape.ops.size()) - 1;
  tape.modules.push_back({at, at + 1, std::vector<int>(op.params.begin(), op.params.end())});
  tape.finish(tape.input, end);
  return tape;
}

}  // namespace shardfit::memory
