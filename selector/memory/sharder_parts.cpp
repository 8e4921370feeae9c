// FSDP with units that are modules inside of blocks: gathers and reductions at their hooks, through the sharder of whole units. Units
// are numbered in the order in which their forwards end (FSDP's post-forward order, by which it prefetches in backward).
#include <algorithm>
#include <map>

#include "selector/memory/gather_parts.hpp"
#include "selector/memory/sharders.hpp"

namespace shardfit::memory {
namespace {

void add(GatherUnit& to, const GatherUnit& u) {
  to.gather_bytes += u.gather_bytes;
  to.elements += u.elements;
  to.trained += u.trained;
  to.trained_shard += u.trained_shard;
  to.adapters += u.adapters;
  to.largest_leaf = std::max(to.largest_leaf, u.largest_leaf);
}

class Parts final : public Sharder, public ModuleWatcher {
 public:
  Parts(const Setup& s, Timeline& t, std::unique_ptr<Sharder> inner) : Sharder(s, t), inner_(std::move(inner)) {}

  void allocate_fixed(const GatherUnit& all) override { inner_->allocate_fixed(all); }
  void prepare(const ModelWalk& walk) override {
    walk_ = &walk;
    inner_->units.clear();
    for (const auto& step : walk.blocks) {
      const auto& layout = layout_of(step);
      first_.push_back(inner_->units.size());
      inner_->units.insert(inner_->units.end(), layout.units.begin(), layout.units.end());
      add(rest_, layout.rest);
    }
    units = inner_->units;
    gathered_.assign(units.size(), 0);
    again_.assign(inner_->units.size(), kNone);
    if (s_.engine == Engine::kFsdp2) find_mistargeted();
  }
  void begin_micro_step(bool last) override { inner_->begin_micro_step(last); }

  void before_forward(std::size_t k) override {
    if (k == 0) gather_rest(false);
    if (const auto u = whole(k); u != kNone) inner_->before_forward(u);
  }
  void after_forward(std::size_t k) override {
    if (const auto u = whole(k); u != kNone) inner_->after_forward(u);
    if (k + 1 == first_.size()) release_rest();
  }
  void before_backward(std::size_t k) override {
    inner_->end_forward();
    if (k + 1 == first_.size() && !(s_.engine == Engine::kFsdp1 && s_.prefetch_backward)) gather_rest(true);
    if (const auto u = whole(k); u != kNone) gather_backward(u);
    // the hook of the last module fires before anything of the block is recomputed: it hangs on the module's output
    if (layout(k).last_at_end && layout(k).parts > 0) gather_backward(first_[k] + static_cast<std::size_t>(layout(k).parts) - 1);
  }
  void after_backward(std::size_t k, Handles& weights) override {
    if (!walk_->blocks[k].replayed) {
      drop_all(weights);
      if (const auto n = layout(k).rest.trained; n > 0) rest_weights_.push_back(t_.make(n * s_.weight_gradient_bytes, Term::kGradients));
      for (int p = layout(k).parts; p-- > 0;) {
        const auto u = first_[k] + static_cast<std::size_t>(p);
        gather_backward(u);
        reduce(u, weights);
      }
    }
    if (const auto u = whole(k); u != kNone) {
      reduce(u, weights);
      return;
    }
    rest_weights_.insert(rest_weights_.end(), weights.begin(), weights.end());
    weights.clear();
  }

  bool takes_gradients() const override { return true; }
  ModuleWatcher* watch(std::size_t block, Pass pass) override {
    block_ = block;
    pass_ = pass;
    open_ = kNone;
    return this;
  }
  void pass_by(std::size_t k, Pass pass) override {
    if (pass != Pass::kForward || walk_->blocks[k].replayed) return;
    for (int p = 0; p < layout(k).parts; ++p) {
      inner_->before_forward(first_[k] + static_cast<std::size_t>(p));
      inner_->after_forward(first_[k] + static_cast<std::size_t>(p));
    }
  }
  void enter(std::size_t module) override {
    if (block_ == kHead) return;
    const int part = part_of(module);
    if (part < 0) return;
    const auto u = first_[block_] + static_cast<std::size_t>(part);
    if (u == open_) return;
    open_ = u;
    if (pass_ == Pass::kBackward) gather_backward(u);
    else if (pass_ == Pass::kForward || !gathered_[u]) inner_->before_forward(u);
  }
  void leave(std::size_t module) override {
    if (block_ == kHead || open_ == kNone || part_of(module) < 0) return;
    const auto& span = layout(block_).span[open_ - first_[block_]];
    if (pass_ == Pass::kBackward) {
      if (module != span.first) return;
      reduce(open_, part_weights_);
    } else {
      if (module != span.second) return;
      if (pass_ == Pass::kForward || !gathered_[open_]) inner_->after_forward(open_);
    }
    open_ = kNone;
  }
  bool take(Timeline::Handle gradient) override {
    if (block_ == kHead) return false;
    if (open_ != kNone) {
      part_weights_.push_back(gradient);
      return true;
    }
    return false;
  }

  void gather_root(int key, const GatherUnit& unit, bool in_backward) override { inner_->gather_root(key, key == 2 ? with_rest(unit) : unit, in_backward); }
  void release_root(int key) override {
    if (key != 0 || !table_in_root(s_)) inner_->release_root(key);
  }
  void reduce_root(int key, const GatherUnit& unit, Handles& weights) override {
    if (key == 1) {
      inner_->reduce_root(key, unit, weights);
      return;
    }
    if (key == 0 && s_.split_root) {
      if (rest_.elements > 0) inner_->reduce_root(2, rest_, rest_weights_);
      inner_->reduce_root(key, unit, weights);
      return;
    }
    weights.insert(weights.end(), rest_weights_.begin(), rest_weights_.end());
    rest_weights_.clear();
    inner_->reduce_root(key, with_rest(unit), weights);
  }
  void begin_backward() override {
    inner_->begin_backward();
    if (s_.engine == Engine::kFsdp1 && s_.prefetch_backward) gather_rest(true);   // ended before the output projection did, and is gathered while that runs
  }
  void begin_embedding_backward() override { inner_->begin_embedding_backward(); }
  Handles before_update() override { return inner_->before_update(); }
  void after_update() override { inner_->after_update(); }
  void end_forward() override { inner_->end_forward(); }
  void end_backward() override { inner_->end_backward(); }
  void zero_gradients() override { inner_->zero_gradients(); }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0} - 1, kNobody = ~std::size_t{0} - 2;

  struct Layout {                       // of equal blocks
    int parts = 0;
    bool is_whole = false, last_at_end = false;
    std::vector<GatherUnit> units;      // the parts, then the block
    GatherUnit rest;                    // the root's
    std::vector<int> of;                // one a parameter of the block
    std::vector<std::pair<std::size_t, std::size_t>> span;   // first and last module of each part that has parameters
  };

  const Layout& layout_of(const ModelWalk::Step& step) {
    auto& l = layouts_[step.kind];
    if (l.of.empty()) {
      const auto parts = gather_parts(s_, *step.block);
      l.parts = parts.count;
      l.is_whole = parts.whole;
      l.of = parts.of;
      for (int p = 0; p < parts.count + (parts.whole ? 1 : 0); ++p) {
        l.units.emplace_back();
        l.units.back().add(unit_sizes(s_, part_of_block(*step.block, parts.of, p)));
      }
      l.rest.add(unit_sizes(s_, part_of_block(*step.block, parts.of, BlockParts::kRoot)));
      l.span.assign(static_cast<std::size_t>(parts.count), {kNone, kNone});
      std::size_t last = kNone;
      for (std::size_t m = 0; m < step.tape->modules.size(); ++m) {
        if (step.tape->modules[m].parameters.empty()) continue;
        last = m;
        const int p = part_of(l, step, m);
        if (p < 0) continue;
        auto& span = l.span[static_cast<std::size_t>(p)];
        if (span.first == kNone) span.first = m;
        span.second = m;
      }
      l.last_at_end = last != kNone && l.parts > 0 && part_of(l, step, last) == l.parts - 1;
    }
    layout_.push_back(&l);
    return l;
  }
  static int part_of(const Layout& l, const ModelWalk::Step& step, std::size_t module) {
    for (const int p : step.tape->modules[module].parameters)
      if (p >= 0 && static_cast<std::size_t>(p) < l.of.size()) {
        const int part = l.of[static_cast<std::size_t>(p)];
        return part < l.parts ? part : -1;
      }
    return -1;
  }
  int part_of(std::size_t module) const { return part_of(layout(block_), walk_->blocks[block_], module); }
  const Layout& layout(std::size_t k) const { return *layout_[k]; }
  std::size_t whole(std::size_t k) const { return layout(k).is_whole ? first_[k] + static_cast<std::size_t>(layout(k).parts) : kNone; }

  void gather_backward(std::size_t u) {
    if (gathered_[u]) return;
    gathered_[u] = 1;
    inner_->end_forward();
    if (again_[u] != kNone) inner_->before_backward(u, again_[u]);
    else inner_->before_backward(u);
  }
  // fully_shard records the end of each forward (_fsdp_param_group.py, _record_post_forward) and in backward gathers the one recorded
  // before. A recomputed forward is recorded again, except that of the block's last module, whose backward has begun by then: so the
  // first module of a block gathers the last recomputed one of the block that went before it in backward, for nothing, until the end
  // of backward (seen in torch 2.6).
  void find_mistargeted() {
    for (std::size_t k = 0; k < first_.size(); ++k) {
      const auto recomputed = [&](std::size_t b) { return walk_->blocks[b].recomputed ? layout(b).parts - (layout(b).last_at_end ? 1 : 0) : 0; };
      if (recomputed(k) <= 0) continue;
      const bool follows = k + 1 < first_.size() && recomputed(k + 1) > 0;
      again_[first_[k]] = follows ? first_[k + 1] + static_cast<std::size_t>(recomputed(k + 1)) - 1 : kNobody;
    }
  }
  void reduce(std::size_t u, Handles& weights) {
    inner_->after_backward(u, weights);
    gathered_[u] = 0;
  }

  // What no unit of a block holds, where the root is several units: the model's own, which a wrapping by size makes.
  bool rest_apart() const { return s_.split_root && rest_.elements > 0; }
  void gather_rest(bool in_backward) {
    if (rest_apart()) inner_->gather_root(2, rest_, in_backward);
  }
  void release_rest() {
    if (rest_apart() && s_.reshard != job::Sharding::Reshard::kFalse) inner_->release_root(2);
  }
  GatherUnit with_rest(GatherUnit unit) const {
    add(unit, rest_);
    return unit;
  }

  std::unique_ptr<Sharder> inner_;
  const ModelWalk* walk_ = nullptr;
  std::map<int, Layout> layouts_;
  std::vector<const Layout*> layout_;   // by block
  std::vector<std::size_t> first_;      // first unit of a block
  std::vector<char> gathered_;          // for its backward
  std::vector<std::size_t> again_;      // unit that a backward gathers ahead, where that is not the one before
  GatherUnit rest_;
  Handles rest_weights_, part_weights_;
  std::size_t block_ = kHead, open_ = kNone;
  Pass pass_ = Pass::kForward;
};

}  // namespace

std::unique_ptr<Sharder> make_parts(const Setup& s, Timeline& t, std::unique_ptr<Sharder> inner) { return std::make_unique<Parts>(s, t, std::move(inner)); }

}  // namespace shardfit::memory
