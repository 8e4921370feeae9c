// Attention: fused kernels keep q, k, v, the result and a statistic a row; eager code keeps the score matrices.
#include "selector/memory/op_rules.hpp"
#include "selector/memory/setup_parts.hpp"

namespace shardfit::memory {

// Views that Megatron or Transformer Engine copies before attention; what they were taken from is let go.
void TapeWriter::contiguous_for_megatron(const model::AttentionShape& shape, int& q, int& k, int& v) {
  const auto is_view = [&](int t) { return tape.base(t) != t; };
  const auto copy = [&](int& t) {
    if (!is_view(t)) return;
    TapeOp op;
    op.name = "contiguous";
    op.in.push(t);
    Meta m = meta[static_cast<std::size_t>(t)];
    m.gathered = -1;
    t = emit(op, m);
  };
  const bool core = recomputing_;
  if (shape.value_head_dim != shape.head_dim) {
    // multi_latent_attention.py: value.contiguous(), a part of what the module mla_up_proj makes again
    recomputing_ = recomputes_layer("mla_up_proj");
    copy(v);
  } else if (!core) {
    // attention.py reshapes a group's query heads into a tensor of their own; Transformer Engine (attention/dot_product_attention/utils.py
    // get_qkv_layout) takes the packed projection as it is only where q, k and v are equal parts of it, neither rotated nor grouped
    const bool grouped = shape.heads != shape.kv_heads, packed = is_view(q) && is_view(k) && is_view(v) && !grouped;
    if (grouped) copy(q);
    const bool own_attention = megatron_word(s.plan, "transformer-impl") == "local";
    if (!packed && !own_attention && !(grouped && s.dialect.repeats_kv)) copy(q), copy(k), copy(v);
  }
  recomputing_ = core;
}

void TapeWriter::attention(const model::Op& op) {
  int q = of[static_cast<std::size_t>(op.in[0])], k = of[static_cast<std::size_t>(op.in[1])], v = of[static_cast<std::size_t>(op.in[2])];
  if (s.engine == Engine::kMegatron) contiguous_for_megatron(op.attention, q, k, v);
  of[static_cast<std::size_t>(op.outs[0])] = attention_core(op.attention, q, k, v);
  // core_attn is checkpointed as it is (attention.py _checkpointed_attention_forward): what it gives back stays
  if (s.engine == Engine::kMegatron && recomputing_) tape.ops.back().recomputed = false;
}

int TapeWriter::attention_core(const model::AttentionShape& a, int q, int k, int v) {
  const Meta mq = meta[static_cast<std::size_t>(q)], mk = meta[static_cast<std::size_t>(k)], mv = meta[static_cast<std::size_t>(v)];
  const std::int64_t heads = std::max<std::int64_t>(1, a.heads / (mq.split ? s.tp : 1));
  const std::int64_t vd = a.value_head_dim > 0 ? a.value_head_dim : a.head_dim;
  const std::int64_t kq = heads * a.head_dim, vq = heads * vd;     // widths with every head written out
  Meta out = mq;
  out.gathered = -1;
  out.width = vq;
  out.bytes = A;
  // transformers since 4.54 leaves grouped heads to SDPA (sdpa_attention.py, use_gqa_in_sdpa); in fp32 no fused kernel takes them, and the
  // math path repeats k and v and keeps the probabilities (run on torch 2.11)
  const bool math = A == 4 && mk.width < kq && !s.eager_attention && s.engine != Engine::kMegatron && s.age >= 454 &&
                    (s.trainer == "transformers" || s.trainer == "accelerate" || s.trainer == "axolotl");
  auto repeat = [&](int t, const Meta& m, std::int64_t width, const char* name) {
    if (!(s.dialect.repeats_kv || math) || m.width >= width) return t;
    TapeOp op;
    op.name = name;
    op.in.push(t);
    Meta r = m;
    r.gathered = -1;
    r.width = width;
    return emit(op, r);
  };
  const bool needs_scores = s.eager_attention || a.relative_bias || math;
  k = repeat(k, mk, kq, "repeat k");
  v = repeat(v, mv, vq, "repeat v");
  if (!needs_scores) {
    // q and k after RoPE, and v, still lie in [positions, heads]; what was repeated lies in [heads, positions] already
    auto contiguous = [&](int t) {
      if (!s.dialect.contiguous_heads) return t;
      TapeOp copy;
      copy.name = "contiguous";
      copy.in.push(t);
      copy.gradients.push(kPass);
      return emit(copy, meta[static_cast<std::size_t>(t)]);
    };
    q = contiguous(q);
    if (meta[static_cast<std::size_t>(k)].width == mk.width) k = contiguous(k);
    if (meta[static_cast<std::size_t>(v)].width == mv.width) v = contiguous(v);
    const std::int64_t expanded = meta[static_cast<std::size_t>(k)].width < kq ? mk.positions * (kq + vq) * A : 0;  // dk, dv before they are summed by group
    TapeOp op;
    op.name = "attention";
    op.in.push(q);
    op.in.push(k);
    op.in.push(v);
    op.saves.push(q);
    op.saves.push(k);
    op.saves.push(v);
    op.extra.push(mq.positions * heads * 4);                       // log-sum-exp
    op.backward_temporary = mq.positions * kq * 4 + mq.positions * heads * 4 + expanded;  // dq accumulates in fp32
    op.gradients.push(mq.positions * kq * A);
    op.gradients.push(meta[static_cast<std::size_t>(k)].elements() * A);
    op.gradients.push(meta[static_cast<std::size_t>(v)].elements() * A);
    op.kept_by_policy = s.policy_keeps_attention;
    const int t = static_cast<int>(tape.tensors.size());
    op.saves.push(t);                                              // its own result, which is the next tensor
    const int y = emit(op, out);
    return A == 2 ? contiguous(y) : y;                             // fp32 goes to the memory-efficient kernel, which gives [positions, heads]
  }
  const std::int64_t keys = shape.sequences > 0 ? mk.positions / shape.sequences : mk.positions;
  Meta scores;
  scores.positions = mq.positions;
  scores.width = heads * keys;
  scores.bytes = A;
  scores.split = mq.split;
  TapeOp qk;
  qk.name = "scores";
  qk.in.push(q);
  qk.in.push(k);
  qk.saves.push(q);
  qk.saves.push(k);
  qk.gradients.push(mq.positions * kq * A);
  qk.gradients.push(meta[static_cast<std::size_t>(k)].elements() * A);
  int x = emit(qk, scores);
  if (s.dialect.adds_mask && !math) {
    TapeOp mask;
    mask.name = "+ mask";
    mask.in.push(x);
    mask.gradients.push(kPass);
    x = emit(mask, scores);
  }
  TapeOp soft;
  soft.name = "softmax";
  soft.in.push(x);
  Meta probabilities = scores;
  if (s.dialect.softmax_fp32 && A == 2) {
    probabilities.bytes = 4;
    soft.gradients.push(scores.size());
  }
  soft.saves.push(static_cast<int>(tape.tensors.size()));
  x = emit(soft, probabilities);
  if (probabilities.bytes != A) {
    TapeOp cast;
    cast.name = "to activation format";
    cast.in.push(x);
    x = emit(cast, scores);
  }
  if (a.dropout > 0 && s.dialect.dropout) {
    TapeOp drop;
    drop.name = "dropout";
    drop.in.push(x);
    drop.extra.push(scores.elements());
    x = emit(drop, scores);
  }
  TapeOp pv;
  pv.name = "probabilities @ v";
  pv.in.push(x);
  pv.in.push(v);
  pv.saves.push(x);
  pv.saves.push(v);
  int y = emit(pv, out);
  if (s.dialect.copies_attention) {
    TapeOp copy;
    copy.name = "contiguous";
    copy.in.push(y);
    y = emit(copy, out);
  }
  return y;
}

}  // namespace shardfit::memory
