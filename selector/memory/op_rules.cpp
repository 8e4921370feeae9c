#include "selector/memory/op_rules.hpp"

#include <algorithm>

namespace shardfit::memory {

using model::OpKind;
using model::Space;

TapeWriter::TapeWriter(const Setup& setup, const model::Block& b, const UnitSizes& u, const BlockShape& sh)
    : s(setup), block(b), unit(u), shape(sh), A(setup.compute_bytes), R(setup.residual_bytes) {
  of.assign(block.tensors.size(), -1);
  tape.tensors.reserve(block.tensors.size() * 3);
  tape.ops.reserve(block.ops.size() * 3);
  meta.reserve(block.tensors.size() * 3);
}

bool TapeWriter::recomputes_layer(const char* name) const {
  return s.checkpoint == Setup::Checkpoint::kSelectiveModules && std::find(s.recomputed_modules.begin(), s.recomputed_modules.end(), name) != s.recomputed_modules.end();
}

// Megatron's --recompute-modules; a list of a plan names these or modules of the model.
bool TapeWriter::recomputed(const model::Op& op) const {
  if (s.checkpoint != Setup::Checkpoint::kSelectiveModules) return false;
  using K = OpKind;
  for (const auto& name : s.recomputed_modules) {
    if (name == "core_attn") {
      if (op.kind == K::kAttention) return true;
    } else if (name == "layernorm") {
      if (op.kind == K::kNorm && op.module.find("norm") != std::string::npos && op.module.find("q_") == std::string::npos && op.module.find("k_") == std::string::npos) return true;
    } else if (name == "moe_act") {
      if (op.kind == K::kExperts) return true;
    } else if (name == "moe") {          // the whole layer: router, experts, shared experts
      if (op.kind == K::kExperts || op.kind == K::kRouter || op.module.find("shared_expert") != std::string::npos) return true;
    } else if (name == "shared_experts") {
      if (op.module.find("shared_expert") != std::string::npos) return true;
    } else if (name == "mla_up_proj") {
      if (op.module.find("q_b_proj") != std::string::npos || op.module.find("kv_b_proj") != std::string::npos) return true;
      if (op.kind == K::kRope || op.kind == K::kConcat) return true;
    } else if (name == "mlp") {
      if (op.module.rfind("mlp.", 0) == 0 && op.kind == K::kLinear && op.module.find("expert") == std::string::npos) return true;
      if ((op.kind == K::kActivation || op.kind == K::kGatedActivation) && op.module.find("expert") == std::string::npos) return true;
    } else if (names_module({name}, op.module, op.module) || (!op.module.empty() && op.module.rfind(name + ".", 0) == 0)) {
      return true;
    }
  }
  return false;
}

// The module whose forward the operators [first, last) are, with the containers that its name shows and that the one before did not.
void TapeWriter::add_module(std::size_t first, std::size_t last, int first_op) {
  const auto& op = block.ops[first];
  const bool called = op.kind == OpKind::kActivation || op.kind == OpKind::kGatedActivation || op.kind == OpKind::kDropout;
  if (!called && op.params.empty() && op.kind != OpKind::kLinear) return;   // a function
  const auto dot = op.module.rfind('.');
  std::string parent = dot == std::string::npos ? "" : op.module.substr(0, dot);
  if (!parent.empty() && parent != container_) tape.modules.push_back({first_op, first_op, {}, true});
  container_ = std::move(parent);
  const bool inside = !container_.empty();
  TapeModule module{first_op, static_cast<int>(tape.ops.size()), {}, false, inside};
  for (std::size_t k = first; k < last; ++k) {
    module.parameters.insert(module.parameters.end(), block.ops[k].params.begin(), block.ops[k].params.end());
    if (unit.adapter[k] == 0) continue;
    module.parameters.push_back(static_cast<int>(block.parameters.size() + k));
    for (int i = 0; i < 4; ++i) tape.modules.push_back({first_op, first_op, {}, false, inside});   // PEFT: the layer it wraps, dropout, lora_A, lora_B
  }
  if (op.kind == OpKind::kGatedActivation && module.parameters.empty() && !tape.modules.back().container) {   // act(gate) runs before up
    const TapeModule& up = tape.modules.back();
    tape.modules.insert(tape.modules.end() - 1, {up.first, up.first, {}, false, up.inside});
    return;
  }
  tape.modules.push_back(std::move(module));
}

Tape TapeWriter::write() {
  const auto& in = block.tensors[static_cast<std::size_t>(block.input)];
  Meta x;
  x.positions = s.sequence_parallel ? shape.tokens / s.tp : shape.tokens;
  x.width = in.width;
  x.bytes = R;
  x.sharded = s.sequence_parallel;
  of[static_cast<std::size_t>(block.input)] = tape.tensor(x.size(), !shape.frozen_input);
  meta.push_back(x);
  const int input = of[static_cast<std::size_t>(block.input)];

  std::vector<char> produced(block.tensors.size(), 0);
  for (const auto& op : block.ops)
    for (auto t : op.outs) produced[static_cast<std::size_t>(t)] = 1;
  for (std::size_t t = 0; t < block.tensors.size(); ++t) {
    if (produced[t] || static_cast<int>(t) == block.input) continue;
    Meta m;                              // the encoder's output, or an input that every block shares
    m.positions = block.tensors[t].space == Space::kEncoderTokens ? shape.encoder_tokens : block.tensors[t].space == Space::kSequences ? shape.sequences : shape.tokens;
    m.width = block.tensors[t].width;
    m.bytes = A;
    // it lives outside of the block: what a block adds is nothing, but operators that keep it share its storage
    of[t] = tape.tensor(0, true);
    meta.push_back(m);
  }

  tape.modules.push_back({0, 0, {}, true});   // the block itself
  std::size_t k = 0;
  while (k < block.ops.size()) {
    const auto& op = block.ops[k];
    std::size_t next = k + 1;
    const int first_op = static_cast<int>(tape.ops.size());
    if (op.kind == OpKind::kLinear && packed_projection(k, next)) {
      add_module(k, next, first_op);
      k = next;
      continue;
    }
    recomputing_ = recomputed(op);
    auto arg = [&](std::size_t i) { return of[static_cast<std::size_t>(op.in[i])]; };
    auto width_of = [&](std::size_t i) { return block.tensors[static_cast<std::size_t>(op.in[i])].width; };
    auto result = [&](int t) { of[static_cast<std::size_t>(op.outs[0])] = t; };
    auto like = [&](int t) {
      Meta m = meta[static_cast<std::size_t>(t)];
      m.gathered = -1;
      return m;
    };
    switch (op.kind) {
      case OpKind::kLinear: result(linear(k, arg(0))); break;
      case OpKind::kNorm: result(norm(op, arg(0))); break;
      case OpKind::kRope: {
        Meta m = like(arg(0));
        if (s.autocast && s.dialect.picks_kernel) m.bytes = R;   // the tables have the stream's format
        TapeOp rope;
        rope.name = "rope";
        rope.in.push(arg(0));
        if (s.dialect.rope_in_place) {
          const int t = tape.view(arg(0));
          meta.resize(tape.tensors.size());
          meta[static_cast<std::size_t>(t)] = m;
          rope.out = t;
          rope.gradients.push(kPass);
          rope.recomputed = recomputing_;
          tape.add(rope, 0);
          result(t);
          break;
        }
        if (s.dialect.rope_concatenates || (op.rotary_fraction < 1 && s.dialect.picks_kernel)) m.heads_first = s.dialect.rope_concatenates;
        rope.forward_temporary = rope.backward_temporary = m.elements() * s.dialect.rope_temporary + m.size() * s.dialect.rope_copies;
        result(emit(rope, m));
        break;
      }
      case OpKind::kAttention: attention(op); break;
      case OpKind::kActivation: {
        Meta m = like(arg(0));
        if (s.mlp_bytes) m.bytes = s.mlp_bytes;
        TapeOp act;
        act.name = "activation";
        act.in.push(arg(0));
        if (op.activation == model::Activation::kGeluTanhPython && s.dialect.python_gelu) {
          if (!s.autocast) act.saves.push(arg(0));
          // x / 2, tanh, 1 + tanh; autocast takes pow in fp32, and all that follows from it
          const std::int64_t wide = m.elements() * (s.autocast ? 4 : m.bytes);
          if (s.autocast) act.extra.push(wide);
          act.extra.push(m.size());
          for (int i = 0; i < 2; ++i) act.extra.push(wide);
          act.forward_temporary = 2 * wide + m.size();
          act.backward_temporary = 3 * wide;
          if (s.autocast) m.bytes = 4;
          result(emit(act, m));
        } else if (op.activation == model::Activation::kReluSquared) {
          act.saves.push(static_cast<int>(tape.tensors.size()));
          const int relu = emit(act, m);
          TapeOp square;
          square.name = "square";
          square.in.push(relu);
          square.saves.push(relu);
          result(emit(square, m));
        } else {
          // relu's and tanh's derivatives are taken from their results (derivatives.yaml)
          const bool from_result = op.activation == model::Activation::kRelu || op.activation == model::Activation::kTanh;
          act.saves.push(from_result ? static_cast<int>(tape.tensors.size()) : arg(0));
          result(emit(act, m));
        }
        break;
      }
      case OpKind::kGatedActivation: {
        Meta m = like(arg(0));
        if (s.mlp_bytes) m.bytes = s.mlp_bytes;
        if (s.dialect.fused_mlp) {
          TapeOp fused;
          fused.name = "gated activation";
          fused.in.push(arg(0));
          fused.in.push(arg(1));
          fused.saves.push(arg(0));
          fused.saves.push(arg(1));
          fused.gradients_over_saves = s.dialect.mlp_in_place;
          result(emit(fused, m));
          break;
        }
        TapeOp act;
        act.name = "activation";
        act.in.push(arg(0));
        act.saves.push(arg(0));
        const int a = emit(act, m);
        TapeOp product;
        product.name = "act * up";
        product.in.push(a);
        product.in.push(arg(1));
        product.saves.push(a);
        product.saves.push(arg(1));
        result(emit(product, m));
        break;
      }
      case OpKind::kMultiply: {
        TapeOp product;
        product.name = "multiply";
        product.in.push(arg(0));
        product.in.push(arg(1));
        product.saves.push(arg(0));
        product.saves.push(arg(1));
        result(emit(product, like(arg(0))));
        break;
      }
      case OpKind::kAdd: {
        const int a = arg(0), b = arg(1);
        TapeOp add;
        add.name = op.is_residual ? "residual" : "add";
        add.in.push(a);
        add.in.push(b);
        const Meta ma = like(a), mb = like(b);
        Meta m = ma.size() >= mb.size() ? ma : mb;
        if (op.is_residual) m.bytes = R;
        for (const auto& each : {ma, mb}) add.gradients.push(each.bytes == m.bytes && each.elements() == m.elements() ? kPass : each.size());
        result(emit(add, m));
        break;
      }
      case OpKind::kScale: {
        TapeOp scale;
        scale.name = "scale";
        scale.in.push(arg(0));
        for (int p : op.params)
          if (trains(p)) {
            if (scale.saves.empty()) scale.saves.push(arg(0));
            scale.weights.push({p, block.parameters[static_cast<std::size_t>(p)].elements() * s.weight_gradient_bytes});
          }
        result(emit(scale, like(arg(0))));
        break;
      }
      case OpKind::kDropout: {
        const double p = s.job.train.dropout.value_or(op.dropout);
        if (p <= 0 || !s.dialect.dropout) {
          of[static_cast<std::size_t>(op.outs[0])] = arg(0);
          break;
        }
        const Meta m = like(arg(0));
        TapeOp drop;
        drop.name = "dropout";
        drop.in.push(arg(0));
        drop.extra.push(m.elements());
        result(emit(drop, m));
        break;
      }
      case OpKind::kConcat: {
        TapeOp cat;
        cat.name = "concat";
        Meta m = like(arg(0));
        bool any_split = false;
        for (std::size_t i = 0; i < op.in.size() && i < 6; ++i) {
          cat.in.push(arg(i));
          any_split = any_split || meta[static_cast<std::size_t>(arg(i))].split;
        }
        m.split = any_split;
        m.heads_first = true;
        m.width = block.tensors[static_cast<std::size_t>(op.outs[0])].width / (any_split ? s.tp : 1);
        for (std::size_t i = 0; i < op.in.size(); ++i) m.positions = std::max(m.positions, meta[static_cast<std::size_t>(arg(i))].positions);
        result(emit(cat, m));
        break;
      }
      case OpKind::kSplit: {
        TapeOp split;
        split.name = "split";
        split.in.push(arg(0));
        const Meta base = like(arg(0));
        const std::int64_t whole = std::max<std::int64_t>(1, width_of(0));
        for (std::size_t i = 0; i < op.outs.size() && i < 5; ++i) {
          const int t = tape.view(arg(0));
          Meta m = base;
          m.width = base.width * block.tensors[static_cast<std::size_t>(op.outs[i])].width / whole;
          meta.resize(tape.tensors.size());
          meta[static_cast<std::size_t>(t)] = m;
          tape.tensors[static_cast<std::size_t>(t)].bytes = m.size();
          of[static_cast<std::size_t>(op.outs[i])] = t;
          if (i == 0) split.out = t;
          else split.more_outs.push(t);
        }
        tape.add(split, 0);
        break;
      }
      case OpKind::kRouter: {
        const Meta in_meta = like(arg(0));
        TapeOp route;
        route.name = "router";
        route.in.push(arg(0));
        route.saves.push(arg(0));
        for (int p : op.params)
          if (trains(p)) route.weights.push({p, block.parameters[static_cast<std::size_t>(p)].elements() * s.weight_gradient_bytes});
        route.extra.push(in_meta.positions * std::max<std::int64_t>(1, op.moe.top_k) * 16);
        Meta logits = in_meta;
        logits.width = op.moe.experts;
        logits.bytes = 4;
        const int l = emit(route, logits);
        TapeOp soft;
        soft.name = "router probabilities";
        soft.in.push(l);
        soft.saves.push(static_cast<int>(tape.tensors.size()));
        result(emit(soft, logits));
        break;
      }
      case OpKind::kExperts: result(experts(op, arg(0), op.in.size() > 1 ? arg(1) : arg(0))); break;
      case OpKind::kSsm: {
        // Mamba-2's chunked scan: keeps its inputs and the state at every chunk's end
        Meta m = like(arg(0));
        m.width = block.tensors[static_cast<std::size_t>(op.outs[0])].width / (m.split ? s.tp : 1);
        TapeOp scan;
        scan.name = "ssm";
        for (std::size_t i = 0; i < op.in.size() && i < 6; ++i) {
          scan.in.push(arg(i));
          scan.saves.push(arg(i));
        }
        const std::int64_t chunk = std::max<std::int64_t>(1, op.ssm.chunk);
        const std::int64_t states = m.positions / chunk + 1;
        scan.extra.push(states * op.ssm.heads * op.ssm.head_dim * op.ssm.state * 4 / (m.split ? s.tp : 1));
        scan.extra.push(m.size());
        scan.forward_temporary = m.positions * op.ssm.heads * chunk * 2 / (m.split ? s.tp : 1);
        scan.backward_temporary = 2 * scan.forward_temporary;
        for (int p : op.params)
          if (trains(p)) scan.weights.push({p, block.parameters[static_cast<std::size_t>(p)].elements() * s.weight_gradient_bytes});
        result(emit(scan, m));
        break;
      }
      default: {                         // embeddings, convolution, pooler and whatever has one input and one result
        Meta m = op.in.empty() ? x : like(arg(0));
        const auto& out = block.tensors[static_cast<std::size_t>(op.outs[0])];
        m.width = out.width;
        if (m.split) m.width /= s.tp;
        if (out.space == Space::kSequences) m.positions = shape.sequences;
        TapeOp any;
        any.name = op.module.c_str();
        for (std::size_t i = 0; i < op.in.size() && i < 6; ++i) any.in.push(arg(i));
        bool trained = false;
        for (int p : op.params)
          if (trains(p)) {
            trained = true;
            any.weights.push({p, block.parameters[static_cast<std::size_t>(p)].elements() * s.weight_gradient_bytes});
          }
        if (trained && !op.in.empty()) any.saves.push(arg(0));
        result(emit(any, m));
        break;
      }
    }
    add_module(k, next, first_op);
    k = next;
  }
  tape.finish(input, of[static_cast<std::size_t>(block.output)]);
  return std::move(tape);
}

Tape block_tape(const Setup& setup, const model::Block& block, const UnitSizes& unit, const BlockShape& shape) {
  return TapeWriter(setup, block, unit, shape).write();
}

}  // namespace shardfit::memory
