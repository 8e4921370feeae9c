#include "selector/memory/sharders.hpp"

#include <algorithm>

namespace shardfit::memory {
namespace {

// FSDP2 (torch/distributed/fsdp/_fully_shard): the all-gather output lives on a stream of its own until the next unit's copy-out;
// the last unit and the root stay gathered; gradients are reduced on a third stream.
class Fsdp2 : public Sharder {
 public:
  using Sharder::Sharder;

  void begin_micro_step(bool last) override { last_micro_step_ = last; }
  void before_forward(std::size_t k) override {
    if (!gathers(s_)) return;
    ensure();
    if (full_[k] >= 0) return;         // stays from the micro batch before
    const auto ag = gather(k);
    t_.drop(previous_);
    full_[k] = t_.make(units[k].gather_bytes, Term::kGathered);
    previous_ = ag;
    for (std::int64_t i = 1; i <= forward_ahead() && k + static_cast<std::size_t>(i) < units.size(); ++i) gather_ahead(k + static_cast<std::size_t>(i));
  }
  void after_forward(std::size_t k) override {
    if (!gathers(s_)) return;
    // torchtitan keeps [norm, output] instead of the last block since it made them a unit (distributed/fsdp.py)
    const bool last = k + 1 == units.size() && !(s_.split_root && s_.trainer == "torchtitan");
    using R = job::Sharding::Reshard;
    const bool stays = s_.reshard == R::kFalse || (last && s_.reshard == R::kTrue) || s_.pp > 1;
    if (stays) return;
    if (s_.reshard == R::kOver) part_[k] = t_.make(units[k].gather_bytes / s_.plan.sharding.reshard_over, Term::kGathered);   // to_sharded_post_forward clones it
    t_.drop(full_[k]);
    full_[k] = Timeline::kNone;
  }
  void before_backward(std::size_t k) override {
    if (!gathers(s_)) return;
    fill(k);
    for (std::int64_t i = 1; i <= s_.plan.schedule.prefetch_blocks.value_or(1) && static_cast<std::size_t>(i) <= k; ++i) gather_ahead(k - static_cast<std::size_t>(i));
  }
  void before_backward(std::size_t k, std::size_t ahead) override {
    if (!gathers(s_)) return;
    fill(k);
    if (ahead < units.size()) gather_ahead(ahead);
  }
  void after_backward(std::size_t k, Handles& weights) override {
    Timeline::Handle full = gathers(s_) ? full_[k] : Timeline::kNone;
    if (gathers(s_) && !(s_.pp > 1)) full_[k] = Timeline::kNone;
    else full = Timeline::kNone;
    reduce(k, units[k], weights, full);
  }
  void gather_root(int key, const GatherUnit& unit, bool in_backward) override {
    if (!gathers(s_) || root_[key] >= 0) return;
    const auto ag = t_.make(unit.gather_bytes, Term::kGatherBuffers, kGather);
    t_.drop(previous_);
    previous_ = Timeline::kNone;
    root_[key] = t_.make(unit.gather_bytes, Term::kGathered);
    if (in_backward) t_.drop(ag);
    else previous_ = ag;
  }
  void release_root(int key) override {
    t_.drop(root_[key]);
    root_[key] = Timeline::kNone;
  }
  void reduce_root(int key, const GatherUnit& unit, Handles& weights) override {
    const bool stays = s_.pp > 1;
    const auto full = stays ? Timeline::kNone : root_[key];
    if (!stays) root_[key] = Timeline::kNone;
    reduce(kRoot + static_cast<std::size_t>(key), unit, weights, full);
  }
  void end_forward() override {
    t_.drop(previous_);
    previous_ = Timeline::kNone;
  }
  // torch.distributed.pipelining, stage.py: after the last micro batch every unit is let go of and reduced, the root first. Until
  // torch 2.9 the last input of a reduction then stays until the next step's first (FSDPState's final callback is not called).
  void end_backward() override {
    for (auto& h : ahead_) t_.drop(h), h = Timeline::kNone;   // finalize_backward: gathers that nobody waited for
    if (s_.pp > 1 && last_micro_step_ && gathers(s_)) {
      for (auto& h : full_) t_.drop(h), h = Timeline::kNone;
      for (auto& h : root_) t_.drop(h), h = Timeline::kNone;
      for (std::size_t i = accumulated_.size(); i-- > 0;) scatter(accumulated_[i].first, accumulated_[i].second);
    }
    if (s_.pp > 1 && s_.torch_date < 20251015) return;
    t_.drop(reduce_input_);
    reduce_input_ = Timeline::kNone;
  }

 protected:
  void fill(std::size_t k) {
    if (full_[k] >= 0) return;
    const auto ag = gather(k);
    full_[k] = t_.make(units[k].gather_bytes, Term::kGathered);
    t_.drop(ag);
    t_.drop(part_[k]);
    part_[k] = Timeline::kNone;
  }
  void ensure() {
    for (auto* list : {&full_, &part_, &ahead_}) list->resize(units.size(), Timeline::kNone);
  }
  void reduce(std::size_t key, const GatherUnit& unit, Handles& weights, Timeline::Handle full) {
    if (s_.shard == 1 && !s_.offload_parameters) {   // fully_shard over one rank: nothing to gather or reduce
      t_.drop(full);
      keep(key, weights);
      return;
    }
    t_.drop(full);
    if (unit.trained == 0) {
      drop_all(weights);
      return;
    }
    if (s_.no_sync) {                  // unsharded_accumulated_grad, in the reduce format
      if (!has(key)) {
        put(key, t_.make(bytes(unit.trained, reduce_bytes()), Term::kUnshardedGradients));
        if (std::none_of(accumulated_.begin(), accumulated_.end(), [key](const auto& a) { return a.first == key; })) accumulated_.emplace_back(key, unit);
      }
      drop_all(weights);
      if (last_micro_step_ && s_.pp == 1) scatter(key, unit);
      return;
    }
    t_.drop(reduce_input_);
    reduce_input_ = t_.make(bytes(unit.trained, reduce_bytes()), Term::kReduceBuffers, reduce_input_stream());
    drop_all(weights);
    keep_shard(key, unit);
  }

  // set_modules_to_forward_prefetch and _backward_prefetch: so many gathers are issued while a unit runs. Without them the next gather of
  // a forward starts when its unit does, and a backward is one ahead. torchtitan asks for one with expert parallelism since a54725cfa.
  std::int64_t forward_ahead() const { return s_.plan.schedule.prefetch_blocks.value_or(s_.trainer == "torchtitan" && s_.ep > 1 && s_.age >= 20250818 ? 1 : 0); }
  Timeline::Handle gather(std::size_t k) {
    if (ahead_[k] < 0) return t_.make(units[k].gather_bytes, Term::kGatherBuffers, kGather);
    const auto ag = ahead_[k];
    ahead_[k] = Timeline::kNone;
    return ag;
  }
  void gather_ahead(std::size_t k) {
    if (full_[k] < 0 && ahead_[k] < 0) ahead_[k] = t_.make(units[k].gather_bytes, Term::kGatherBuffers, kGather);
  }
  double reduce_bytes() const { return s_.adapters.any ? s_.adapters.bytes : s_.reduce_bytes; }
  static std::int64_t bytes(std::int64_t elements, double each) { return static_cast<std::int64_t>(static_cast<double>(elements) * each); }
  // torch 2.4 put the input of a reduction on the stream of the reductions too (_fsdp_collectives.py)
  int reduce_input_stream() const { return s_.torch_date <= 20240724 ? kReduce : kCompute; }

  // Reduces what micro batches without synchronisation have gathered.
  void scatter(std::size_t key, const GatherUnit& unit) {
    const auto kept = std::find_if(gradients_.begin(), gradients_.end(), [key](const Kept& k) { return k.key == key; });
    if (kept == gradients_.end()) return;
    const auto whole = kept->handle;
    gradients_.erase(kept);
    t_.drop(reduce_input_);
    reduce_input_ = t_.make(bytes(unit.trained, reduce_bytes()), Term::kReduceBuffers, reduce_input_stream());
    t_.drop(whole);
    keep_shard(key, unit);
  }
  void keep_shard(std::size_t key, const GatherUnit& unit) {
    const double rb = reduce_bytes(), gb = s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes;
    auto shard = t_.make(bytes(unit.trained_shard, rb), Term::kGradients, kReduce);
    if (s_.offload_gradients || s_.in_backward || has(key)) {
      t_.drop(shard);
      return;
    }
    if (gb != rb) {
      const auto cast = t_.make(bytes(unit.trained_shard, gb), Term::kGradients, kReduce);
      t_.drop(shard);
      shard = cast;
    }
    put(key, shard);
  }

  std::vector<Timeline::Handle> full_, part_, ahead_;   // part_: sharded over fewer ranks between forward and backward; ahead_: gathered, not yet copied out
  Timeline::Handle previous_ = Timeline::kNone, reduce_input_ = Timeline::kNone;
  std::vector<std::pair<std::size_t, GatherUnit>> accumulated_;   // units whose gradients are whole until they are reduced, in order of backward
  bool last_micro_step_ = true;
  Timeline::Handle root_[3] = {Timeline::kNone, Timeline::kNone, Timeline::kNone};
};

}  // namespace

std::unique_ptr<Sharder> make_fsdp2(const Setup& s, Timeline& t) { return std::make_unique<Fsdp2>(s, t); }

}  // namespace shardfit::memory
