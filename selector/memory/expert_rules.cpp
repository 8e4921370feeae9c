// Mixture of experts: routed copies of the tokens, the experts' MLP on them, and their sum, as each framework's code writes it.
// Balanced routing is assumed.
#include <algorithm>
#include <cmath>

#include "selector/memory/op_rules.hpp"
#include "selector/memory/setup_parts.hpp"

namespace shardfit::memory {
namespace {

// Elements of the experts' matrices on this rank, and whether they are trained.
struct ExpertWeights {
  std::int64_t up = 0, down = 0;        // up: gate and up projections
  bool trained = false;
};

ExpertWeights expert_weights(const TapeWriter& w, const model::Op& op) {
  ExpertWeights e;
  for (int index : op.params) {
    const auto& p = w.block.parameters[static_cast<std::size_t>(index)];
    if (p.kind != model::Parameter::Kind::kExpert) continue;
    e.trained = e.trained || w.trains(index);
    const bool down = p.name.find("down") != std::string::npos || p.name.find("w2") != std::string::npos || p.name.find("fc2") != std::string::npos;
    (down ? e.down : e.up) += p.elements();
  }
  const std::int64_t share = w.s.ep > 1 || w.s.etp > 1 ? w.s.ep * w.s.etp : w.s.tp;
  e.up /= share;
  e.down /= share;
  return e;
}

}  // namespace

// transformers before 5: a Python loop over the experts (modeling_mixtral.py, modeling_qwen2_moe.py, modeling_qwen3_moe.py,
// modeling_deepseek_v3.py, modeling_gpt_oss.py of 4.57). From 5.0 on torch's grouped product unless told otherwise
// (integrations/moe.py grouped_mm_experts_forward; modeling_utils.py get_correct_experts_implementation).
bool loops_over_experts(const Setup& s) { return (s.trainer == "transformers" || s.trainer == "accelerate") && s.age < 500; }

// Tensors of three dimensions instead: modeling_gpt_oss.py, modeling_llama4.py; two for all experts: modeling_dbrx.py.
bool experts_are_linear_layers(const Setup& s) {
  const auto& family = s.model.family;
  return loops_over_experts(s) && family != "gpt_oss" && family != "llama4" && family != "dbrx";
}

int TapeWriter::experts(const model::Op& op, int x, int weights) {
  if (s.engine == Engine::kMegatron) return experts_megatron(op, x);
  if (loops_over_experts(s) && s.tp == 1 && s.ep == 1) return experts_loop(op, x, weights);
  return experts_grouped(op, x, weights);
}

// One product over all experts: torch._grouped_mm, megablocks' grouped MLP (llm-foundry's DBRX).
int TapeWriter::experts_grouped(const model::Op& op, int x, int weights) {
  const auto& moe = op.moe;
  const Meta in = meta[static_cast<std::size_t>(x)];
  const std::int64_t top = std::max<std::int64_t>(1, moe.top_k);
  const std::int64_t width = std::max<std::int64_t>(1, moe.intermediate / (s.ep > 1 || s.etp > 1 ? s.etp : s.tp));
  // Experts with tensor parallelism of their own see the whole sequence; otherwise each rank routes what it holds.
  if (!(s.ep > 1 && s.etp == 1)) x = gather_sequence(x);
  const Meta seen = meta[static_cast<std::size_t>(x)];
  Meta routed = seen;
  routed.gathered = -1;
  routed.positions = seen.positions * top;
  routed.sharded = false;
  routed.bytes = A;
  const bool exchange = s.ep > 1;
  const bool throws_activation = recomputing_;
  recomputing_ = false;
  TapeOp dispatch;
  dispatch.name = "dispatch";
  dispatch.in.push(x);
  dispatch.in.push(weights);
  dispatch.forward_temporary = dispatch.backward_temporary = exchange ? routed.size() : 0;
  dispatch.kept_by_policy = exchange && s.policy_keeps_exchange;
  const int d = emit(dispatch, routed);
  const ExpertWeights e = expert_weights(*this, op);
  Meta hidden = routed;
  hidden.width = width * (moe.gated ? 2 : 1);
  TapeOp up;
  up.name = "experts up";
  up.in.push(d);
  if (e.trained) {
    up.saves.push(d);
    up.weights.push({-2, weight_gradient(e.up)});
  }
  up.kept_by_policy = s.policy_keeps_experts && ++matmuls % 2 == 1;
  const int g = emit(up, hidden);
  Meta inner = routed;
  inner.width = width;
  TapeOp act;
  act.name = "experts activation";
  act.in.push(g);
  act.saves.push(g);
  if (moe.gated && !s.dialect.fused_mlp) act.extra.push(inner.size() * (moe.activation == model::Activation::kSwigluOai ? 4 : 1));
  recomputing_ = throws_activation;
  const int a = emit(act, inner);
  recomputing_ = false;
  TapeOp down;
  down.name = "experts down";
  down.in.push(a);
  if (e.trained) {
    down.saves.push(a);
    down.weights.push({-2, weight_gradient(e.down)});
  }
  down.kept_by_policy = (exchange && s.policy_keeps_exchange) || (s.policy_keeps_experts && ++matmuls % 2 == 1);   // it comes back through the exchange
  const int y = emit(down, routed);
  TapeOp combine;
  combine.name = "combine";
  combine.in.push(y);
  combine.in.push(weights);
  combine.forward_temporary = exchange ? routed.size() : 0;
  if (s.trainer == "torchtitan") {
    // models/moe/moe.py multiplies by the scores in fp32, before the experts or after them, and keeps that copy; scatter_add keeps none
    combine.extra.push(routed.elements() * 4);
    combine.forward_temporary += routed.elements() * 4 + routed.size();
    combine.backward_temporary = routed.elements() * 4 * 2;
  } else {
    combine.saves.push(y);
  }
  Meta out = in;
  out.gathered = -1;
  out.bytes = A;
  if (s.sequence_parallel && !(s.ep > 1 && s.etp == 1)) {
    out.positions = seen.positions;
    out.sharded = false;
    return row_parallel_end(emit(combine, out));
  }
  return emit(combine, out);
}

// One expert after the other, each result added into the block's output in place (index_add_). What backward needs is kept for all of
// them, but only one expert's gradients are in work at a time. The loop is written as at most kLoopSteps equal steps.
int TapeWriter::experts_loop(const model::Op& op, int x, int weights) {
  constexpr std::int64_t kLoopSteps = 8;
  const auto& moe = op.moe;
  const Meta in = meta[static_cast<std::size_t>(x)];
  const std::int64_t count = std::max<std::int64_t>(1, moe.experts), steps = std::min(count, kLoopSteps);
  const std::int64_t rows = in.positions * std::max<std::int64_t>(1, moe.top_k), h = in.width, f = std::max<std::int64_t>(1, moe.intermediate);
  const std::int64_t step_rows = (rows + steps - 1) / steps, expert_rows = (rows + count - 1) / count;
  const ExpertWeights e = expert_weights(*this, op);
  recomputing_ = false;
  Meta out = in;
  out.gathered = -1;
  out.bytes = A;
  // Experts held as one tensor of three dimensions (gpt-oss, Llama 4, DBRX): the gradient of one expert's part is made in the shape
  // of the whole tensor and added to it (select_backward).
  const bool stacked = !experts_are_linear_layers(s);
  const std::int64_t whole = e.trained && stacked ? std::max(e.up, e.down) * s.weight_gradient_bytes : 0;
  const bool quantized = !op.params.empty() && unit.roles[static_cast<std::size_t>(op.params[0])].quantized;
  const std::int64_t dequantized = quantized ? h * f * A : 0;   // one weight at a time, for its product and again for its gradient
  const bool clamped = moe.activation == model::Activation::kSwigluOai;
  const int weighted = s.model.model_type == "deepseek_v3" ? 4 : A;   // its router's weights are fp32
  int y = -1;
  for (std::int64_t i = 0; i < steps; ++i) {
    TapeOp step;
    step.name = "experts";
    if (y >= 0) {
      step.in.push(y);
      step.gradients.push(kPass);
    }
    step.in.push(x);
    step.gradients.push(in.size());                        // index_put into zeros of the input's shape
    if (y < 0) {
      step.in.push(weights);
      step.gradients.push(meta[static_cast<std::size_t>(weights)].size());
    }
    if (e.trained) step.extra.push(step_rows * h * A);     // the expert's tokens
    step.extra.push(step_rows * f * A * (moe.gated ? 3 : 1));   // gate, what the activation makes of it, up
    if (clamped) step.extra.push(step_rows * f * A * 3);   // clamped gate, its sigmoid, up + 1
    if (e.trained) step.extra.push(step_rows * f * A);     // product, the down projection's input
    step.extra.push(step_rows * h * A);                    // result, before its weight
    step.extra.push(step_rows * h * weighted);             // and after it: index_add keeps its source
    step.extra.push(step_rows * 24);                       // indices
    if (e.trained) {
      step.weights.push({-2, weight_gradient(e.up / steps)});
      step.weights.push({-2, weight_gradient(e.down / steps)});
    }
    step.forward_temporary = std::max(expert_rows * h * A, dequantized);   // weighted result
    step.backward_temporary = expert_rows * (2 * h + 3 * f) * A + whole + dequantized;
    if (y < 0) {
      y = emit(step, out);
    } else {
      const int t = tape.view(y);
      meta.resize(tape.tensors.size());
      meta[static_cast<std::size_t>(t)] = out;
      step.out = t;
      tape.add(step, 0);
      y = t;
    }
  }
  return y;
}

// core/transformer/moe of Megatron-LM d98e8a64dd: permute, exchange, sort, grouped MLP, and back (token_dispatcher.py; experts.py
// TEGroupedMLP). The router's weights are applied inside the activation, so that the results are not kept. moe_layer.py holds the
// permuted and the exchanged tokens in variables until the layer returns.
int TapeWriter::experts_megatron(const model::Op& op, int x) {
  const auto& moe = op.moe;
  const Meta in = meta[static_cast<std::size_t>(x)];
  const std::int64_t top = std::max<std::int64_t>(1, moe.top_k), count = std::max<std::int64_t>(1, moe.experts);
  const std::int64_t width = std::max<std::int64_t>(1, moe.intermediate / s.etp), local = std::max<std::int64_t>(1, count / s.ep);
  const bool throws_activation = recomputing_ && !recomputes_layer("moe");
  recomputing_ = recomputes_layer("moe");
  const std::string dispatcher = megatron_word(s.plan, "moe-token-dispatcher-type");
  Meta routed = in;
  routed.gathered = -1;
  routed.positions = in.positions * top;
  routed.sharded = false;
  routed.bytes = A;
  // experts padded to their capacity (moe_utils.py get_capacity)
  const auto* factor = megatron_value(s.plan, "moe-expert-capacity-factor");
  if (factor && factor->is_number() && factor->get<double>() > 0 && factor->get<double>() < 1e3 && megatron_flag(s.plan, "moe-pad-expert-input-to-capacity"))
    routed.positions = static_cast<std::int64_t>(std::ceil(static_cast<double>(routed.positions) / static_cast<double>(count) * factor->get<double>())) * count;
  const auto step = [&](const char* name, int from, const Meta& m, bool held) {
    TapeOp move;
    move.name = name;
    move.in.push(from);
    const int t = emit(move, m);
    tape.tensors[static_cast<std::size_t>(t)].hold = held;
    return t;
  };
  const std::int64_t maps = in.positions * count * 5 + routed.positions * 8;   // probabilities by expert, the map, sorted indices
  Meta here = routed;                   // on the ranks that hold the experts
  here.positions = routed.positions * s.etp;
  int t;
  if (dispatcher == "allgather") {
    Meta all = in;
    all.gathered = -1;
    all.sharded = false;
    all.positions = in.positions * s.etp * s.ep;
    t = s.ep * s.etp > 1 ? step("gather tokens", x, all, true) : x;
    t = step("permute", t, here, false);
  } else if (dispatcher == "flex") {
    // DeepEP sends a token once to each rank that has any of its experts; HybridEP's kernel permutes on the way
    if (s.ep > 1 && megatron_word(s.plan, "moe-flex-dispatcher-backend") != "hybridep") {
      Meta received = in;
      received.gathered = -1;
      received.sharded = false;
      const double ranks = static_cast<double>(s.ep * s.etp);
      received.positions = static_cast<std::int64_t>(static_cast<double>(in.positions) * ranks * (1 - std::pow(1 - 1 / static_cast<double>(s.ep), static_cast<double>(top))));
      t = step("dispatch", x, received, true);
    } else {
      t = x;
    }
    t = step("permute", t, here, false);
  } else {
    t = step("permute", x, routed, true);
    if (s.ep > 1) t = step("all-to-all", t, routed, true);
    if (s.etp > 1) t = step("gather experts' tokens", t, here, false);
    if (local > 1) t = step("sort by expert", t, here, false);
  }
  tape.ops.back().extra.push(maps);
  const ExpertWeights e = expert_weights(*this, op);
  Meta hidden = here;
  hidden.width = width * (moe.gated ? 2 : 1);
  TapeOp up;
  up.name = "experts up";
  up.in.push(t);
  if (e.trained) {
    keep_input(up, t);
    up.weights.push({-2, weight_gradient(e.up)});
  }
  const int g = emit(up, hidden);
  Meta inner = here;
  inner.width = width;
  TapeOp act;
  act.name = "experts activation";
  act.in.push(g);
  act.saves.push(g);
  act.extra.push(here.positions * 4);
  const bool throws_all = recomputing_;
  recomputing_ = throws_all || throws_activation;
  const int a = emit(act, inner);
  recomputing_ = throws_all;
  TapeOp down;
  down.name = "experts down";
  down.in.push(a);
  if (e.trained) {
    keep_input(down, a);
    down.weights.push({-2, weight_gradient(e.down)});
  }
  int y = emit(down, here);
  Meta out = in;
  out.gathered = -1;
  out.bytes = A;
  if (dispatcher == "allgather") {
    Meta all = out;
    all.sharded = false;
    all.positions = in.positions * s.etp * s.ep;
    y = step("unpermute", y, all, false);
    return s.ep * s.etp > 1 ? step("reduce-scatter", y, out, false) : y;
  }
  if (dispatcher != "flex") {
    if (local > 1) y = step("sort back", y, here, false);
    if (s.etp > 1) y = step("reduce-scatter experts", y, routed, false);
    if (s.ep > 1) y = step("all-to-all back", y, routed, false);
  }
  y = step("unpermute", y, out, false);
  recomputing_ = false;
  return y;
}

}  // namespace shardfit::memory
