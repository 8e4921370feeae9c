#include "selector/memory/zero_calls.hpp"

#include <algorithm>
#include <cmath>

namespace shardfit::memory {
namespace {

constexpr double kEnds = 3;             // blocks at each end that are traced whatever the limits are

// The modules of a tape in the order of its backward: a container comes before what it holds.
std::vector<std::size_t> backward_order(const std::vector<TapeModule>& modules) {
  std::vector<std::size_t> order;
  order.reserve(modules.size());
  if (!modules.empty()) order.push_back(0);
  for (std::size_t i = modules.size(); i-- > 1;) {
    std::size_t first = i;
    while (modules[first].inside && first > 1 && !modules[first].container) --first;
    if (first < i && modules[first].container) order.push_back(first);
    for (std::size_t j = i; j > first || (j == first && !modules[j].container); --j) order.push_back(j);
    i = first;
  }
  return order;
}

}  // namespace

ZeroCalls::ZeroCalls(const Setup& s, const ModelWalk& walk) : s_(s), walk_(walk) {
  choose_blocks();
  const std::size_t n = walk.blocks.size();
  if (walk.embedding) embedding_base_ = number(s.model.embedding, *walk.embedding);
  std::vector<std::int32_t> base(n, -1);
  for (std::size_t k = 0; k < n; ++k) {
    const auto& step = walk.blocks[k];
    if (traced_[k]) {
      base[k] = number(*step.block, *step.sizes);
      continue;
    }
    untraced_ += static_cast<double>(step.sizes->elements);
    in_memory_ += static_cast<double>(step.sizes->elements) / static_cast<double>(s.shard);
    for (const auto& p : step.block->parameters)
      if (static_cast<double>(p.elements()) <= s.zero.persistence) untraced_persistent_ += static_cast<double>(p.elements());
  }
  if (walk.head) head_base_ = number(s.model.head, *walk.head);

  const ZeroTrace::Ids none;
  const auto add_embedding = [&](bool backward) {
    if (!walk.embedding) return;
    ids_.clear();
    for (std::size_t i = 0; i < s.model.embedding.parameters.size(); ++i) ids_.push_back(embedding_base_ + static_cast<std::int32_t>(i));
    // token ids need no gradient, so the hook behind the backward never fires and the table stays to its end
    const auto e = trace_.add(ids_, backward ? ZeroTrace::Entry::kCallOnly : ZeroTrace::Entry::kCall);
    embedding_[backward ? 1 : 0] = {2 * e, 2 * e + 1};
  };
  layout_.assign(n, nullptr);
  for (auto& start : start_) start.assign(n, -1);
  trace_.add(none);                     // the model, and the body inside it
  trace_.add(none);
  add_embedding(false);
  if (s.model.rope_theta > 0) trace_.add(none);
  for (std::size_t k = 0; k < n; ++k) {
    if (!traced_[k]) continue;
    const auto [it, fresh] = layouts_.try_emplace({walk.blocks[k].kind, walk.blocks[k].recomputed});
    layout_[k] = &it->second;
    if (fresh) it->second.is_leaf = is_leaf(walk.blocks[k]);
    start_[0][k] = 2 * trace_.size();
    add_forward(walk.blocks[k], base[k], fresh ? &it->second.pass[0] : nullptr);
  }
  if (walk.head_tape) {
    add_head(false);
    add_head(true);
  }
  for (std::size_t k = n; k-- > 0;) {
    if (!traced_[k]) continue;
    start_[1][k] = start_[2][k] = 2 * trace_.size();
    auto& layout = layouts_.at({walk.blocks[k].kind, walk.blocks[k].recomputed});
    add_backward(walk.blocks[k], base[k], layout.pass[2].modules.empty() && layout.pass[2].end == 0 ? &layout : nullptr);
  }
  add_embedding(true);
}

void ZeroCalls::choose_blocks() {
  const std::size_t n = walk_.blocks.size();
  traced_.assign(n, 1);
  std::int64_t elements = 0;
  for (const auto& b : walk_.blocks) {
    if (b.kind != walk_.blocks.front().kind || b.recomputed != walk_.blocks.front().recomputed) return;
    elements = std::max(elements, b.sizes->elements);
  }
  const bool frozen = s_.adapters.any && keeps_frozen();
  if (elements <= 0 || (walk_.blocks.front().recomputed && (frozen || keeps_recomputed()))) return;
  const double reach = std::max(s_.zero.max_live, s_.zero.max_reuse) + s_.zero.prefetch_bucket;
  const double ends = std::ceil(reach / static_cast<double>(elements)) + 1 + kEnds;
  if (2 * ends >= static_cast<double>(n)) return;
  const auto edge = static_cast<std::size_t>(ends);
  for (std::size_t i = edge; i + edge < n; ++i) traced_[i] = walk_.blocks[i].replayed;
}

// leaf_module.classes, and module_granularity_threshold: parameters over the modules that share them (_set_z3_leaf_modules_by_threshold).
bool ZeroCalls::is_leaf(const ModelWalk::Step& step) const {
  const auto& names = s_.zero.leaf_classes;
  if (std::find(names.begin(), names.end(), step.block->class_name) != names.end()) return true;
  return s_.zero.granularity > 0 && static_cast<double>(step.sizes->elements) <= s_.zero.granularity * static_cast<double>(step.tape->modules.size());
}

// Numbers a block's parameters one after the other, then the adapters of its operators; returns the first number.
std::int32_t ZeroCalls::number(const model::Block& block, const UnitSizes& sizes) {
  const auto base = static_cast<std::int32_t>(trace_.parameters.size());
  const auto& zero = s_.zero;
  const auto add = [&](TraceParameter p, double tensor) {   // mark_persistent_parameters
    p.persists = tensor <= zero.persistence && persistent_ + tensor <= zero.model_persistence;
    if (p.persists) persistent_ += static_cast<double>(p.elements);
    if (s_.plan.offload.parameters == job::Place::kNvme) {   // partitioned_param_swapper.py swappable_tensor: a part of 1 MiB or more
      const double part = static_cast<double>(p.elements) / static_cast<double>(s_.shard);
      in_memory_ += part;
      p.swapped = in_memory_ > zero.most_in_memory && part * p.bytes >= 1048576;
    }
    trace_.parameters.push_back(p);
  };
  for (std::size_t i = 0; i < block.parameters.size(); ++i) {
    const auto& from = block.parameters[i];
    TraceParameter p;
    p.elements = from.elements();
    if (s_.tp > 1 && from.kind != model::Parameter::Kind::kNorm) p.elements = (p.elements + s_.tp - 1) / s_.tp;
    if (s_.ep > 1 && from.kind == model::Parameter::Kind::kExpert) p.elements = (p.elements + s_.ep - 1) / s_.ep;
    p.trained = sizes.roles[i].trainable;
    p.linear = from.kind == model::Parameter::Kind::kMatrix && &block != &s_.model.embedding;
    p.quantized = zero.quantized_frozen && !p.trained;
    p.bytes = sizes.roles[i].quantized ? s_.quantized_bytes : s_.parameter_bytes;
    add(p, static_cast<double>(p.elements));
  }
  if (!s_.adapters.any) return base;
  for (const auto n : sizes.adapter) {
    TraceParameter p;
    p.elements = n;
    p.bytes = s_.adapters.bytes;
    add(p, static_cast<double>(n) / 2);  // two matrices
  }
  return base;
}

const ZeroTrace::Ids& ZeroCalls::ids_of(const TapeModule& module, std::int32_t base) {
  ids_.clear();
  for (const int p : module.parameters)
    if (trace_.parameters[static_cast<std::size_t>(base + p)].elements > 0) ids_.push_back(base + p);
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  return ids_;
}

void ZeroCalls::add_forward(const ModelWalk::Step& step, std::int32_t base, Place* place) {
  const auto& modules = step.tape->modules;
  const std::int32_t start = trace_.size();
  if (layouts_.at({step.kind, step.recomputed}).is_leaf) {
    TapeModule whole;
    for (std::size_t i = 0; i < step.block->parameters.size(); ++i) whole.parameters.push_back(static_cast<int>(i));
    trace_.add(ids_of(whole, base));
    if (place) place->modules.assign(modules.size(), {0, 0});
  } else {
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const auto e = trace_.add(ids_of(modules[i], base));
      if (place) place->modules.push_back({2 * (e - start), 2 * (e - start) + 1});
    }
  }
  if (place) place->end = 2 * (trace_.size() - start);
}

// An entry of a recomputed block, which on return lets go of what is trained alone where frozen parameters are kept.
std::int32_t ZeroCalls::add_kept(const ZeroTrace::Ids& ids, ZeroTrace::Entry entry) {
  if (!keeps_frozen()) return trace_.add(ids, entry);
  trained_.clear();
  for (const auto p : ids)
    if (trace_.parameters[static_cast<std::size_t>(p)].trained) trained_.push_back(p);
  return trace_.add(ids, trained_, entry);
}

// Backward, and the recomputed forward within it. Re-entrant checkpointing recomputes before the block's own hooks fire; otherwise the
// backward has entered the last linear layer when it asks for what that saved, and the forward runs inside of it.
void ZeroCalls::add_backward(const ModelWalk::Step& step, std::int32_t base, Layout* layout) {
  const auto& modules = step.tape->modules;
  const std::int32_t start = trace_.size();
  const bool stays = step.recomputed && keeps_recomputed();
  const auto whole_call = stays ? ZeroTrace::Entry::kCallOnly : ZeroTrace::Entry::kCall;
  Place again, back;
  again.modules.assign(modules.size(), {});
  back.modules.assign(modules.size(), {});
  if (layouts_.at({step.kind, step.recomputed}).is_leaf) {
    if (step.recomputed) add_forward(step, base, nullptr);
    TapeModule whole;
    for (std::size_t i = 0; i < step.block->parameters.size(); ++i) whole.parameters.push_back(static_cast<int>(i));
    const auto e = trace_.add(ids_of(whole, base), whole_call);
    std::fill(again.modules.begin(), again.modules.end(), Marks{0, 0});
    std::fill(back.modules.begin(), back.modules.end(), Marks{2 * (e - start), 2 * (e - start)});
  } else {
    const auto recompute = [&](std::size_t open) {   // what is open already does not go when the recomputed call returns
      for (std::size_t i = 0; i < modules.size(); ++i) {
        const auto e = add_kept(ids_of(modules[i], base), i == open ? ZeroTrace::Entry::kCallOnly : ZeroTrace::Entry::kCall);
        again.modules[i] = {2 * (e - start), 2 * (e - start) + 1};
      }
    };
    bool pending = step.recomputed;
    if (pending && s_.reentrant) {
      recompute(modules.size());
      pending = false;
    }
    for (const std::size_t i : backward_order(modules)) {
      const bool opens = pending && !modules[i].parameters.empty();
      const auto entry = opens ? ZeroTrace::Entry::kCallOnly : whole_call;
      const auto e = step.recomputed ? add_kept(ids_of(modules[i], base), entry) : trace_.add(ids_of(modules[i], base), entry);
      back.modules[i] = {2 * (e - start), 2 * (e - start) + 1};
      if (!opens) continue;
      recompute(i);
      pending = false;
      if (!stays) back.modules[i].release = 2 * (trace_.add(ids_of(modules[i], base), ZeroTrace::Entry::kReturnOnly) - start) + 1;
    }
  }
  if (!layout) return;
  again.end = 0;                        // the backward's own calls may come first: nothing is skipped at the end of the recompute
  back.end = 2 * (trace_.size() - start);
  layout->pass[1] = std::move(again);
  layout->pass[2] = std::move(back);
}

// [model] [projection] [body] [final norm] in backward. The first module of a head's tape stands for no module of the code.
void ZeroCalls::add_head(bool backward) {
  const auto& modules = walk_.head_tape->modules;
  const std::int32_t start = trace_.size();
  head_start_[backward ? 1 : 0] = 2 * start;
  auto& place = head_[backward ? 1 : 0];
  place.modules.assign(modules.size(), {});
  const ZeroTrace::Ids none;
  if (backward) trace_.add(none);
  for (std::size_t i = 1; i < modules.size(); ++i) {
    const std::size_t m = backward ? modules.size() - i : i;
    if (modules[m].container) continue;
    const bool projection = m + 1 == modules.size();
    const bool table = projection && modules[m].parameters.empty() && s_.model.tied_embeddings && walk_.embedding != nullptr;
    const auto e = table ? trace_.add({embedding_base_}) : trace_.add(ids_of(modules[m], head_base_));
    place.modules[m] = {2 * (e - start), 2 * (e - start) + 1};
    if (backward && projection) trace_.add(none);
  }
  place.end = 2 * (trace_.size() - start);
}

ZeroCalls::Marks ZeroCalls::of(std::size_t block, Pass pass, std::size_t module) const {
  const auto absolute = [module](const Place& place, std::int32_t start) -> Marks {
    const auto& m = place.modules[module];
    if (m.fetch < 0) return {};
    return {start + m.fetch, m.release < 0 ? -1 : start + m.release};
  };
  if (block == Sharder::kHead) return absolute(head_[pass == Pass::kBackward ? 1 : 0], head_start_[pass == Pass::kBackward ? 1 : 0]);
  const auto p = static_cast<std::size_t>(pass);
  return absolute(layout_[block]->pass[p], start_[p][block]);
}

std::vector<std::size_t> ZeroCalls::fullest_blocks(const std::vector<double>& live) const {
  std::vector<std::size_t> blocks;
  std::vector<std::size_t> call_of(static_cast<std::size_t>(trace_.size()) + 1, 0);
  for (std::int32_t e = 0; e < trace_.size(); ++e) call_of[static_cast<std::size_t>(e) + 1] = call_of[static_cast<std::size_t>(e)] + (trace_.is_call(e) ? 1 : 0);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    double most = -1;
    std::size_t where = 0;
    for (std::size_t k = 0; k < layout_.size(); ++k) {
      if (!layout_[k]) continue;
      const auto p = static_cast<std::size_t>(pass);
      const auto first = call_of[static_cast<std::size_t>(start_[p][k] / 2)], last = call_of[static_cast<std::size_t>(end(k, pass) / 2)];
      for (auto c = first; c < last; ++c)
        if (live[c] > most) most = live[c], where = k;
    }
    if (most >= 0) blocks.push_back(where);
  }
  return blocks;
}

std::int32_t ZeroCalls::end(std::size_t block, Pass pass) const {
  if (block == Sharder::kHead) return head_start_[pass == Pass::kBackward ? 1 : 0] + head_[pass == Pass::kBackward ? 1 : 0].end;
  const auto p = static_cast<std::size_t>(pass);
  return start_[p][block] + layout_[block]->pass[p].end;
}

}  // namespace shardfit::memory
