#include "selector/memory/tape.hpp"

#include <algorithm>

namespace shardfit::memory {
namespace {

// Kernels an eager operator launches on average, with the copies that DTensor and autograd add.
constexpr int kKernelsForward = 2, kKernelsBackward = 4;

}  // namespace

int Tape::tensor(std::int64_t bytes, bool requires_gradient) {
  TensorInfo t;
  t.bytes = bytes;
  t.requires_gradient = requires_gradient;
  tensors.push_back(t);
  return static_cast<int>(tensors.size()) - 1;
}

int Tape::view(int of) {
  TensorInfo t = tensors[static_cast<std::size_t>(of)];
  t.base = base(of);
  tensors.push_back(t);
  return static_cast<int>(tensors.size()) - 1;
}

int Tape::add(TapeOp op, std::int64_t out_bytes) {
  bool needs = !op.weights.empty();
  for (int i : op.in) needs = needs || requires_gradient(i);
  op.needs_gradient = needs;
  if (op.gradients.empty())
    for (int i : op.in) op.gradients.push(bytes(i));
  for (int k = 0; k < op.in.count; ++k)
    if (!requires_gradient(op.in.values[k])) op.gradients.values[k] = kNoGradient;
  if (op.out < 0) op.out = tensor(out_bytes, needs);
  if (!needs) {
    op.saves.count = 0;
    op.extra.count = 0;
    op.backward_temporary = 0;
  }
  ops.push_back(op);
  return op.out;
}

void Tape::finish(int input_tensor, int output_tensor) {
  input = input_tensor;
  output = output_tensor;
  const int n = static_cast<int>(ops.size());
  auto use = [this](int t, int when) {
    auto& last = tensors[static_cast<std::size_t>(t)].last_use;
    last = std::max(last, when);
  };
  std::vector<char> thrown(tensors.size(), 0);
  for (const auto& op : ops)
    if (op.recomputed && op.out >= 0) thrown[static_cast<std::size_t>(base(op.out))] = 1;
  for (int k = 0; k < n; ++k) {
    auto& op = ops[static_cast<std::size_t>(k)];
    SmallList<int, 8> kept;
    for (int t : op.saves) {
      if (thrown[static_cast<std::size_t>(base(t))]) op.backward_temporary += bytes(t);
      else kept.push(t);
    }
    op.saves = kept;
    if (op.recomputed) {
      for (auto b : op.extra) op.backward_temporary += b;
      op.extra.count = 0;
    }
    for (int i : op.in) use(i, k);
    if (op.out >= 0) use(op.out, k);
    for (int i : op.more_outs) use(i, k);
    for (int i : op.saves) {
      use(i, k);                         // an operator may keep what only an earlier one has read (the part of a gathered sequence)
      tensors[static_cast<std::size_t>(base(i))].is_saved = true;
    }
    if (!op.saves.empty() || !op.extra.empty()) last_saving_op = k;
  }
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t].hold) tensors[t].last_use = n;
  tensors[static_cast<std::size_t>(output)].last_use = n + 1;
  input_gradient = gradient_of_input();
  std::sort(context.begin(), context.end());
  context.erase(std::unique(context.begin(), context.end()), context.end());
}

// As TapeRunner::backward finds it: the first gradient that is made decides, later ones are added to it.
std::int64_t Tape::gradient_of_input() const {
  std::vector<std::int64_t> sizes(tensors.size(), 0);
  sizes[static_cast<std::size_t>(output)] = bytes(output);
  for (std::size_t k = ops.size(); k-- > 0;) {
    const auto& op = ops[k];
    if (!op.needs_gradient) continue;
    const std::int64_t out = sizes[static_cast<std::size_t>(op.out)];
    for (int j = 0; j < op.in.count; ++j) {
      auto& size = sizes[static_cast<std::size_t>(op.in.values[j])];
      const std::int64_t b = op.gradients.values[j];
      if (size == 0 && b != kNoGradient) size = b == kPass ? out : b;
    }
  }
  return sizes[static_cast<std::size_t>(input)];
}

std::int64_t Tape::saved_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t].is_saved && static_cast<int>(t) != input) sum += tensors[t].bytes;
  for (const auto& op : ops)
    for (auto e : op.extra) sum += e;
  return sum;
}

Timeline::Handle TapeRunner::forward(const Tape& tape, Timeline::Handle x, const Forward& how, Saved* saved) {
  live_.assign(tape.tensors.size(), Timeline::kNone);
  live_[static_cast<std::size_t>(tape.input)] = timeline_.share(x);
  const int n = static_cast<int>(tape.ops.size());
  const int end = how.stop_after >= 0 ? std::min(n, how.stop_after + 1) : n;
  if (saved) {
    saved->flat = false;
    saved->by_op.resize(tape.ops.size());
    for (auto& list : saved->by_op) list.clear();
  }
  std::size_t next_module = 0, open_module = tape.modules.size();
  for (int k = 0; k < end; ++k) {
    if (watcher)
      for (; next_module < tape.modules.size() && tape.modules[next_module].first <= k; ++next_module) {
        if (tape.modules[next_module].first == tape.modules[next_module].last) continue;
        open_module = next_module;
        watcher->enter(open_module);
      }
    const auto& op = tape.ops[static_cast<std::size_t>(k)];
    const Term term = op.term == Term::kActivations ? how.term : op.term;
    const auto temporary = timeline_.make(op.forward_temporary, Term::kTemporaries);
    auto at = [this](int t) -> Timeline::Handle& { return live_[static_cast<std::size_t>(t)]; };
    if (op.more_outs.empty()) {
      const int base = tape.base(op.out);
      if (base != op.out) {
        at(op.out) = timeline_.share(at(op.in.values[0]));   // a view of what it reads, whose own base may be gone
      } else if (at(op.out) < 0) {
        if (!how.collect_policy && how.kept && op.kept_by_policy && (*how.kept)[static_cast<std::size_t>(op.out)] >= 0) {
          at(op.out) = (*how.kept)[static_cast<std::size_t>(op.out)];
          (*how.kept)[static_cast<std::size_t>(op.out)] = Timeline::kNone;
        } else {
          at(op.out) = timeline_.make(tape.bytes(op.out), term);
        }
      }
    } else {
      at(op.out) = timeline_.share(at(op.in.values[0]));
      for (int t : op.more_outs) at(t) = timeline_.share(at(op.in.values[0]));
    }
    timeline_.drop(temporary);
    timeline_.launch(kKernelsForward);
    if (op.collective) {
      timeline_.record(at(op.in.values[0]));
      timeline_.record(at(op.out));
    }
    if (how.save && saved && op.needs_gradient) {
      auto& kept = saved->by_op[static_cast<std::size_t>(k)];
      for (int t : op.saves) kept.push_back(timeline_.share(at(t)));
      for (auto b : op.extra) kept.push_back(timeline_.make(b, term));
    }
    if (how.cache)
      for (int t : tape.cached)
        if (t == op.out || std::find(op.more_outs.begin(), op.more_outs.end(), t) != op.more_outs.end()) how.cache->push_back(timeline_.share(at(t)));
    if (how.collect_policy && op.kept_by_policy) (*how.kept)[static_cast<std::size_t>(op.out)] = timeline_.share(at(op.out));
    auto let_go = [&](int t) {
      if (at(t) >= 0 && tape.tensors[static_cast<std::size_t>(t)].last_use <= k) {
        timeline_.drop(at(t));
        at(t) = Timeline::kNone;
      }
    };
    for (int t : op.in) let_go(t);
    if (how.on_model_output && op.out == tape.model_output) how.on_model_output(at(op.out));
    let_go(op.out);
    for (int t : op.more_outs) let_go(t);
    if (open_module < tape.modules.size() && tape.modules[open_module].last == k + 1) {
      watcher->leave(open_module);
      open_module = tape.modules.size();
    }
  }
  const Timeline::Handle y = live_[static_cast<std::size_t>(tape.output)];
  live_[static_cast<std::size_t>(tape.output)] = Timeline::kNone;
  for (auto h : live_) timeline_.drop(h);
  if (!how.collect_policy && how.kept) {
    for (auto& h : *how.kept) {
      timeline_.drop(h);
      h = Timeline::kNone;
    }
  }
  return y;
}

Timeline::Handle TapeRunner::forward_kept_only(const Tape& tape, Timeline::Handle x, const Forward& how, Saved* saved) {
  if (saved) {
    saved->flat = true;
    saved->by_op.resize(1);
    saved->by_op[0].clear();
  }
  bool input_kept = false, output_kept = false;
  Timeline::Handle y = Timeline::kNone;
  for (const auto& op : tape.ops) {
    const Term term = op.term == Term::kActivations ? how.term : op.term;
    if (op.out >= 0 && op.more_outs.empty() && tape.base(op.out) == op.out) {
      const auto& info = tape.tensors[static_cast<std::size_t>(op.out)];
      if (op.out == tape.output) {
        y = timeline_.make(info.bytes, term);
        output_kept = info.is_saved;
        if (how.collect_policy && op.kept_by_policy) (*how.kept)[static_cast<std::size_t>(op.out)] = timeline_.share(y);
      } else if (how.save && saved && info.is_saved) {
        saved->by_op[0].push_back(timeline_.make(info.bytes, term));
      } else if (how.cache && std::any_of(tape.cached.begin(), tape.cached.end(), [&](int t) { return tape.base(t) == op.out; })) {
        how.cache->push_back(timeline_.make(info.bytes, term));
      } else if (how.collect_policy && op.kept_by_policy) {
        (*how.kept)[static_cast<std::size_t>(op.out)] = timeline_.make(info.bytes, term);
      }
    }
    if (how.save && saved && op.needs_gradient)
      for (auto b : op.extra) saved->by_op[0].push_back(timeline_.make(b, term));
  }
  input_kept = tape.tensors[static_cast<std::size_t>(tape.input)].is_saved;
  if (how.save && saved) {
    if (input_kept) saved->by_op[0].push_back(timeline_.share(x));
    if (output_kept) saved->by_op[0].push_back(timeline_.share(y));
  }
  if (y < 0) y = timeline_.share(x);
  return y;
}

Timeline::Handle TapeRunner::backward(const Tape& tape, Saved& saved, Timeline::Handle gy, std::vector<Timeline::Handle>& weights,
                                      const std::function<void()>& before_projection) {
  grad_.assign(tape.tensors.size(), Timeline::kNone);
  auto at = [this](int t) -> Timeline::Handle& { return grad_[static_cast<std::size_t>(t)]; };
  at(tape.output) = gy;
  std::size_t module = tape.modules.size(), open_module = module;
  for (int k = static_cast<int>(tape.ops.size()) - 1; k >= 0; --k) {
    const auto& op = tape.ops[static_cast<std::size_t>(k)];
    if (k == tape.projection && before_projection) before_projection();
    if (!op.needs_gradient) continue;
    if (watcher) {
      while (module > 0 && (tape.modules[module - 1].first > k || tape.modules[module - 1].first == tape.modules[module - 1].last)) --module;
      if (module > 0 && tape.modules[module - 1].last > k && module - 1 != open_module) {
        if (open_module < tape.modules.size()) watcher->leave(open_module);
        open_module = module - 1;
        watcher->enter(open_module);
      }
    }
    const Timeline::Handle out = at(op.out);
    at(op.out) = Timeline::kNone;
    const auto temporary = timeline_.make(op.backward_temporary, Term::kTemporaries);
    Timeline::Handle made[6];
    int ids[6], count = 0;
    for (int j = 0; j < op.in.count; ++j) {
      const std::int64_t b = op.gradients.values[j];
      if (b == kNoGradient) continue;
      ids[count] = op.in.values[j];
      const bool over = op.gradients_over_saves && !saved.flat && static_cast<std::size_t>(j) < saved.by_op[static_cast<std::size_t>(k)].size();
      made[count++] = b == kPass ? timeline_.share(out)
                      : over     ? timeline_.share(saved.by_op[static_cast<std::size_t>(k)][static_cast<std::size_t>(j)])
                                 : timeline_.make(b, Term::kActivationGradients);
    }
    const std::size_t before = weights.size();
    for (const auto& w : op.weights) {
      const auto h = timeline_.make(w.bytes, Term::kGradients);
      if (h >= 0) weights.push_back(h);
    }
    timeline_.drop(temporary);
    if (gradients_leave) {
      std::size_t kept = before;
      for (std::size_t i = before; i < weights.size(); ++i) {
        if (!watcher) timeline_.drop(weights[i]);
        else if (!watcher->take(weights[i])) weights[kept++] = weights[i];
      }
      weights.resize(kept);
    }
    timeline_.launch(kKernelsBackward);
    if (op.collective) {
      timeline_.record(out);
      if (count > 0) timeline_.record(made[0]);
    }
    if (!saved.flat && k < static_cast<int>(saved.by_op.size())) {
      for (auto h : saved.by_op[static_cast<std::size_t>(k)]) timeline_.drop(h);
      saved.by_op[static_cast<std::size_t>(k)].clear();
    }
    timeline_.drop(out);
    for (int t : op.more_outs) {
      timeline_.drop(at(t));
      at(t) = Timeline::kNone;
    }
    for (int j = 0; j < count; ++j) {
      auto& slot = at(ids[j]);
      if (slot < 0) {
        slot = made[j];
      } else if (timeline_.references(slot) > 1) {   // shared with another gradient: the sum is a new tensor
        const auto sum = timeline_.make(tape.bytes(ids[j]), Term::kActivationGradients);
        timeline_.drop(slot);
        timeline_.drop(made[j]);
        slot = sum;
      } else {
        timeline_.drop(made[j]);
      }
    }
    if (open_module < tape.modules.size() && tape.modules[open_module].first == k) {
      watcher->leave(open_module);
      open_module = tape.modules.size();
    }
  }
  if (open_module < tape.modules.size()) watcher->leave(open_module);
  const Timeline::Handle gx = at(tape.input);
  at(tape.input) = Timeline::kNone;
  for (auto h : grad_) timeline_.drop(h);
  return gx;
}

Timeline::Handle TapeRunner::backward_kept_only(const Tape& tape, Saved& saved, Timeline::Handle gy, std::vector<Timeline::Handle>& weights) {
  for (int k = static_cast<int>(tape.ops.size()) - 1; k >= 0; --k) {
    const auto& op = tape.ops[static_cast<std::size_t>(k)];
    if (!op.needs_gradient || gradients_leave) continue;
    for (const auto& w : op.weights) {
      const auto h = timeline_.make(w.bytes, Term::kGradients);
      if (h >= 0) weights.push_back(h);
    }
  }
  for (auto& list : saved.by_op) {
    for (std::size_t i = list.size(); i-- > 0;) timeline_.drop(list[i]);
    list.clear();
  }
  if (!tape.requires_gradient(tape.input)) {
    timeline_.drop(gy);
    return Timeline::kNone;
  }
  if (tape.input_gradient == tape.bytes(tape.output)) return gy;
  timeline_.drop(gy);
  return timeline_.make(tape.input_gradient, Term::kActivationGradients);
}

}  // namespace shardfit::memory
