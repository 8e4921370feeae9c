// Attention: fused kernels keep q, k, v, the result and a statistic a row; eager code keeps the score matrices.
#include <algorithm>

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

namespace {

// What a ring over the ranks of context parallelism allocates beside the kernels. Elements on this rank; `bytes` each.
void add_ring(const Setup& s, TapeOp& op, std::int64_t q, std::int64_t kv, std::int64_t out, int bytes) {
  if (s.engine == Engine::kMegatron) {
    // Transformer Engine, attention/dot_product_attention/context_parallel.py AttnFuncWithCPAndKVP2P: a buffer of k and v for each rank,
    // the last of which is kept in place of k and v, and each step's result until all are merged (whole on the last rank). Backward:
    // two buffers of k, v and their gradients, and the gradients of one step.
    op.forward_temporary += ((s.cp - 1) * kv + s.cp * out) * bytes;
    op.backward_temporary += (3 * kv + q + kv) * bytes;
    return;
  }
  if (s.engine != Engine::kFsdp1 && s.engine != Engine::kFsdp2) return;
  // torch/distributed/tensor/experimental/_attention.py (2.6; _context_parallel/_attention.py in 2.11): k and v of all ranks gathered once;
  // results are merged in fp32, four of them and the kernel's own at once. Backward: gathered again, gradients summed in fp32, those of k and
  // v sent round in two buffers, and the gradients of one step.
  op.forward_temporary += s.cp * kv * bytes + out * (4 * 4 + bytes);
  op.backward_temporary += s.cp * kv * bytes + (q + kv) * 4 + 2 * kv * 4 + (q + kv) * bytes;
}

}  // namespace

void TapeWriter::attention(const model::Op& op) {
  int q = of[static_cast<std::size_t>(op.in[0])], k = of[static_cast<std::size_t>(op.in[1])], v = of[static_cast<std::size_t>(op.in[2])];
  if (s.engine == Engine::kMegatron) contiguous_for_megatron(op.attention, q, k, v);
  of[static_cast<std::size_t>(op.outs[0])] = attention_core(op.attention, q, k, v);
  // core_attn is checkpointed as it is (attention.py _checkpointed_attention_forward): what it gives back stays
  if (s.engine == Engine::kMegatron && recomputing_) tape.ops.back().recomputed = false;
}

int TapeWriter::attention_core(const model::AttentionShape& a, int q, int k, int v) {
  const Meta mq = meta[static_cast<std::size_t>(q)], mk = meta[static_cast<std::size_t>(k)], mv = meta[static_cast<std::size_t>(v)];
  const auto& d = s.dialect;
  const bool cached = d.caches_kv && (a.causal || a.cross);
  if (cached && !d.expands_kv) tape.cached.insert(tape.cached.end(), {k, v});
  const std::int64_t heads = std::max<std::int64_t>(1, a.heads / (mq.split ? s.tp : 1));
  const std::int64_t vd = a.value_head_dim > 0 ? a.value_head_dim : a.head_dim;
  const std::int64_t kq = heads * a.head_dim, vq = heads * vd;     // widths with every head written out
  const std::int64_t keys = shape.sequences > 0 ? mk.positions / shape.sequences : mk.positions;
  const bool scores_written = s.eager_attention || (a.relative_bias && !d.bias_in_mask);
  // SDPA: a mask or unequal head sizes leave flash; grouped heads without a mask in fp32 leave the math kernel only, which writes scores
  const bool sdpa = !scores_written && d.picks_kernel && !d.flash_package;
  const bool masked = sdpa && (d.masked_sdpa || a.relative_bias || (a.window && *a.window <= keys));
  const bool grouped = mk.width < kq && !d.expands_kv;
  const bool flash = !sdpa || (!masked && A == 2 && vd == a.head_dim && a.head_dim <= 256);
  const bool math = sdpa && !flash && grouped && !masked && !d.repeats_kv && vd == a.head_dim && a.head_dim <= 256;
  const bool needs_scores = scores_written || math;
  const bool repeats = d.repeats_kv || d.expands_kv || needs_scores || (sdpa && !flash);

  Meta out = mq;
  out.gathered = -1;
  out.width = vq;
  out.bytes = A;
  out.heads_first = false;
  auto repeat = [&](int t, const Meta& m, std::int64_t width, const char* name) {
    // one head for all is expanded without a copy (repeat_kv's reshape of it stays a view); products of scores copy it
    if (!repeats || m.width >= width || (d.picks_kernel && !needs_scores && !d.contiguous_heads && m.width == a.head_dim)) return t;
    TapeOp op;
    op.name = name;
    op.in.push(t);
    Meta r = m;
    r.gathered = -1;
    r.width = width;
    return emit(op, r);
  };
  auto cast = [&](int t, int bytes, const char* name) {
    Meta m = meta[static_cast<std::size_t>(t)];
    if (m.bytes == bytes) return t;
    TapeOp op;
    op.name = name;
    op.in.push(t);
    m.bytes = bytes;
    m.gathered = -1;
    return emit(op, m);
  };
  k = repeat(k, mk, kq, "repeat k");
  v = repeat(v, mv, vq, "repeat v");
  if (cached && d.expands_kv && mk.width > a.head_dim)   // of one head the cache holds what the index copied, not the expansion
    for (int t : {k, v})
      if (tape.base(t) == t) tape.cached.push_back(t);
  if (s.autocast) {
    q = cast(q, A, "autocast");
    k = cast(k, A, "autocast");
    v = cast(v, A, "autocast");
  }
  // batched products take whole tensors: of a view of a packed projection they make a copy
  if (d.picks_kernel && (needs_scores || d.expands_kv)) {
    auto own = [&](int t) {
      // without a cache the copy only takes the place of what it was made from
      const bool copied = cached && needs_scores && !meta[static_cast<std::size_t>(t)].heads_first && std::find(tape.cached.begin(), tape.cached.end(), t) != tape.cached.end();
      if (tape.base(t) == t && !copied) return t;
      TapeOp op;
      op.name = "contiguous";
      op.in.push(t);
      Meta m = meta[static_cast<std::size_t>(t)];
      m.gathered = -1;
      return emit(op, m);
    };
    if (needs_scores) q = own(q), k = own(k);
    v = own(v);
  }
  if (!needs_scores) {
    // q and k after RoPE, and v, still lie in [positions, heads]; what was repeated lies in [heads, positions] already
    auto contiguous = [&](int t) {
      if (!d.contiguous_heads || meta[static_cast<std::size_t>(t)].heads_first) return t;
      TapeOp copy;
      copy.name = "contiguous";
      copy.in.push(t);
      copy.gradients.push(kPass);
      return emit(copy, meta[static_cast<std::size_t>(t)]);
    };
    q = contiguous(q);
    if (meta[static_cast<std::size_t>(k)].width == mk.width) k = contiguous(k);
    if (meta[static_cast<std::size_t>(v)].width == mv.width) v = contiguous(v);
    const bool pads = d.flash_package && vd < a.head_dim;          // flash_attn wants equal head sizes: v is padded, the result cut
    if (pads) {
      TapeOp pad;
      pad.name = "pad v";
      pad.in.push(v);
      Meta m = meta[static_cast<std::size_t>(v)];
      m.width = kq;
      m.gathered = -1;
      v = emit(pad, m);
    }
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
    if (masked && (d.mask_per_layer || a.relative_bias)) op.extra.push((a.relative_bias ? heads : shape.sequences) * (mq.positions / std::max<std::int64_t>(1, shape.sequences)) * keys * A);
    op.backward_temporary = (A == 2 ? mq.positions * kq * 4 : 0) + mq.positions * heads * 4 + expanded;  // dq accumulates in fp32
    if (s.cp > 1 && !a.cross)
      add_ring(s, op, mq.positions * kq, meta[static_cast<std::size_t>(k)].elements() + meta[static_cast<std::size_t>(v)].elements(), out.elements(), A);
    op.gradients.push(mq.positions * kq * A);
    op.gradients.push(meta[static_cast<std::size_t>(k)].elements() * A);
    op.gradients.push(meta[static_cast<std::size_t>(v)].elements() * A);
    op.kept_by_policy = s.policy_keeps_attention;
    const int t = static_cast<int>(tape.tensors.size());
    op.saves.push(t);                                              // its own result, which is the next tensor
    Meta result = out;
    if (pads) result.width = kq;
    const int y = emit(op, result);
    // Flash kernels give their result in q's layout; what lies in [heads, positions] is copied for the output projection. The
    // memory-efficient kernel gives [positions, heads].
    if (pads || (flash && d.picks_kernel && (mq.heads_first || d.contiguous_heads))) {
      TapeOp copy;
      copy.name = "contiguous";
      copy.in.push(y);
      return emit(copy, out);
    }
    return y;
  }
  Meta scores;
  scores.positions = mq.positions;
  scores.width = heads * keys;
  scores.bytes = d.scores_fp32 && !s.autocast ? 4 : A;
  scores.split = mq.split;
  if (scores.bytes != A) {
    q = cast(q, 4, "q to fp32");
    k = cast(k, 4, "k to fp32");
  }
  auto step = [&](const char* name, int x, const Meta& m) {
    TapeOp op;
    op.name = name;
    op.in.push(x);
    return emit(op, m);
  };
  TapeOp qk;
  qk.name = "scores";
  qk.in.push(q);
  qk.in.push(k);
  qk.saves.push(q);
  qk.saves.push(k);
  qk.gradients.push(mq.positions * kq * scores.bytes);
  qk.gradients.push(meta[static_cast<std::size_t>(k)].elements() * scores.bytes);
  int x = emit(qk, scores);
  if (d.copies_attention && !math) x = step("* scale", x, scores);
  if (d.softcap) {
    TapeOp cap;
    cap.name = "softcap";
    cap.in.push(x);
    cap.saves.push(static_cast<int>(tape.tensors.size()));         // tanh's result
    cap.forward_temporary = scores.size();                         // scores / cap
    x = step("* softcap", emit(cap, scores), scores);
  }
  if (d.adds_mask && !math) {
    TapeOp mask;
    mask.name = "+ mask";
    mask.in.push(x);
    mask.gradients.push(kPass);
    x = emit(mask, scores);
  }
  const int masked_scores = x;
  Meta probabilities = scores;
  if (d.softmax_fp32 && A == 2) probabilities.bytes = 4;
  if (probabilities.bytes != scores.bytes) x = step("to fp32", x, probabilities);
  TapeOp soft;
  soft.name = "softmax";
  soft.in.push(x);
  soft.saves.push(static_cast<int>(tape.tensors.size()));
  x = emit(soft, probabilities);
  Meta last = scores;
  last.bytes = A;
  if (probabilities.bytes != A) {
    TapeOp back;
    back.name = "to activation format";
    back.in.push(x);
    back.in.push(masked_scores);                                   // its name is bound until this is done
    back.gradients.push(probabilities.size());
    back.gradients.push(kNoGradient);
    x = emit(back, last);
  }
  if (a.dropout > 0 && d.dropout) {
    TapeOp drop;
    drop.name = "dropout";
    drop.in.push(x);
    drop.extra.push(scores.elements());
    x = emit(drop, last);
  }
  TapeOp pv;
  pv.name = "probabilities @ v";
  pv.in.push(x);
  pv.in.push(v);
  pv.saves.push(x);
  pv.saves.push(v);
  const int y = emit(pv, out);
  return d.copies_attention ? step("contiguous", y, out) : y;
}

}  // namespace shardfit::memory
