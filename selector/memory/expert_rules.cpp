// Mixture of experts: routed copies of the tokens, the experts' MLP on them, and their sum. Balanced routing is assumed.
#include "selector/memory/op_rules.hpp"

namespace shardfit::memory {

int TapeWriter::experts(const model::Op& op, int x, int weights) {
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
  const bool throws_all = recomputing_;
  recomputing_ = false;
  TapeOp dispatch;
  dispatch.name = "dispatch";
  dispatch.in.push(x);
  dispatch.in.push(weights);
  dispatch.forward_temporary = dispatch.backward_temporary = exchange ? routed.size() : 0;
  dispatch.kept_by_policy = exchange && s.policy_keeps_exchange;
  const int d = emit(dispatch, routed);
  bool trained = false;
  std::int64_t up_elements = 0, down_elements = 0;
  for (std::size_t k = 0; k < op.params.size(); ++k) {
    const auto& p = block.parameters[static_cast<std::size_t>(op.params[k])];
    if (p.kind != model::Parameter::Kind::kExpert) continue;
    trained = trained || trains(op.params[k]);
    const bool down = p.name.find("down") != std::string::npos || p.name.find("w2") != std::string::npos || p.name.find("fc2") != std::string::npos;
    (down ? down_elements : up_elements) += p.elements();
  }
  const std::int64_t share = s.ep > 1 || s.etp > 1 ? s.ep * s.etp : s.tp;
  up_elements /= share;
  down_elements /= share;
  Meta hidden = routed;
  hidden.width = width * (moe.gated ? 2 : 1);
  const bool throws_activation = throws_all;
  TapeOp up;
  up.name = "experts up";
  up.in.push(d);
  if (trained) {
    up.saves.push(d);
    up.weights.push({-2, weight_gradient(up_elements)});
  }
  up.kept_by_policy = s.policy_keeps_experts && ++matmuls % 2 == 1;
  const int g = emit(up, hidden);
  Meta inner = routed;
  inner.width = width;
  TapeOp act;
  act.name = "experts activation";
  act.in.push(g);
  act.saves.push(g);
  if (moe.gated && !s.dialect.fused_mlp) act.extra.push(inner.size());
  recomputing_ = throws_activation;      // moe_act: only the activation between the two products
  const int a = emit(act, inner);
  recomputing_ = false;
  TapeOp down;
  down.name = "experts down";
  down.in.push(a);
  if (trained) {
    down.saves.push(a);
    down.weights.push({-2, weight_gradient(down_elements)});
  }
  down.kept_by_policy = (exchange && s.policy_keeps_exchange) || (s.policy_keeps_experts && ++matmuls % 2 == 1);   // it comes back through the exchange
  const int e = emit(down, routed);
  TapeOp combine;
  combine.name = "combine";
  combine.in.push(e);
  combine.in.push(weights);
  combine.saves.push(e);
  combine.forward_temporary = exchange ? routed.size() : 0;
  Meta out = in;
  out.gathered = -1;
  out.bytes = A;
  if (s.sequence_parallel && !(s.ep > 1 && s.etp == 1)) {
    out.positions = seen.positions;
    out.sharded = false;
    const int y = emit(combine, out);
    return row_parallel_end(y);
  }
  return emit(combine, out);
}

}  // namespace shardfit::memory
