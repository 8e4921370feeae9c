// ZeRO-3 (deepspeed/runtime/zero/stage3.py, partition_parameters.py, parameter_offload.py, 0.9 to 0.19): parameters come and go module
// by module as ZeroTrace says, gradients are copied into a bucket and reduced when the next one does not fit.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "selector/memory/host_terms.hpp"
#include "selector/memory/sharders.hpp"
#include "selector/memory/zero_calls.hpp"

namespace shardfit::memory {
namespace {

constexpr double kNormBytes = 8;        // norms are taken of a copy in fp64
// Before #6662 stage3.py backward ended with reset_step, and release_and_reset_all then took what was left off a count of zero: each step
// fetches that much more ahead. Since then the forward begins with it.
constexpr int kResetsFirst = 1504;
constexpr int kReleasesLeftovers = 1903;  // parameter_offload.py release_backward_leftovers; before, they stay to the step

std::int64_t bytes(double elements, double each) { return static_cast<std::int64_t>(elements * each); }

class Zero3 final : public Sharder, public ModuleWatcher {
 public:
  Zero3(const Setup& s, Timeline& t) : Sharder(s, t), z_(s.zero), gathers_(gathers(s)) {
    gradient_bytes_ = s.adapters.any ? s.adapters.bytes : s.parameter_bytes < s.gradient_bytes ? s.parameter_bytes : s.gradient_bytes;
  }

  void allocate_fixed(const GatherUnit& all) override {
    if (all.trained == 0) return;
    mine_ = static_cast<double>(all.trained_shard);
    largest_ = static_cast<double>(all.largest_leaf);
    // stage3.py _setup_for_real_optimizer: the bucket in its full size, and one flat buffer for this rank's gradients
    if (z_.contiguous) t_.make(bytes(z_.reduce_bucket, z_.communication_bytes), Term::kReduceBuffers);
    if (!s_.offload_optimizer && !s_.offload_gradients) t_.make(bytes(mine_, z_.accumulation_bytes), Term::kGradients);
    // _create_fp32_partitions clones each sub-group's cast copy; initialize_optimizer_states makes a gradient and lets go of it
    if (!s_.offload_optimizer && s_.master_bytes > 0) t_.drop(t_.make(bytes(std::min(mine_, z_.sub_group), z_.update_bytes), Term::kLoading));
    // ratio below 1: the sub-groups that stay have the gradient of their update on the device from the start
    if (s_.offload_optimizer) {
      here_ = mine_ * (1 - optimizer_share_off_device(s_, mine_));
      t_.make(bytes(here_, z_.update_bytes), Term::kGradients);
    }
  }

  void prepare(const ModelWalk& walk) override {
    if (!gathers_) return;
    calls_ = std::make_unique<ZeroCalls>(s_, walk);
    const auto& trace = calls_->trace();
    first_ = trace.first_step();
    recorded_ = trace.recorded(limits(), true);
    if (z_.release < kResetsFirst)
      recorded_ = trace.recorded(limits(), true, {}, -recorded_.left - calls_->untraced_persistent());
    held_by_.assign(trace.parameters.size(), kNobody);
    data_.assign(trace.parameters.size(), Timeline::kNone);
    if (z_.second_shard > 1) second_.assign(trace.parameters.size(), Timeline::kNone);
    if (z_.weights_saved_whole) saved_.assign(trace.parameters.size(), Timeline::kNone);
  }

  std::vector<std::size_t> fullest_blocks() const override { return gathers_ ? calls_->fullest_blocks(recorded_.live) : std::vector<std::size_t>(); }
  void begin_micro_step(bool last) override {
    last_ = last;
    backward_ = false;
    if (!gathers_) return;
    plan_ = started_ ? &recorded_ : &first_;
    if (started_) {
      gather_persistent();
      start_with_leftovers();
    }
    started_ = true;
    cursor_ = 0;
  }
  void begin_backward() override { backward_ = true; }
  bool takes_gradients() const override { return true; }

  ModuleWatcher* watch(std::size_t block, Pass pass) override {
    block_ = block;
    pass_ = pass;
    return this;
  }
  void pass_by(std::size_t block, Pass pass) override {
    if (!gathers_) return;
    if (calls_->traced(block)) advance(calls_->end(block, pass));
    else if (pass == Pass::kForward) pass_untraced();
  }
  void enter(std::size_t module) override {
    if (gathers_) advance(calls_->of(block_, pass_, module).fetch + 1);
  }
  void leave(std::size_t module) override {
    if (gathers_) advance(calls_->of(block_, pass_, module).release + 1);
  }
  bool take(Timeline::Handle gradient) override {
    if (block_ == kHead && s_.model.tied_embeddings) return false;   // it waits for the token table's
    reduce_later(gradient);
    return true;
  }

  void gather_root(int key, const GatherUnit&, bool) override {
    if (gathers_ && key == 0) advance(calls_->embedding(false).fetch + 1);
  }
  void release_root(int key) override {
    if (gathers_ && key == 0) advance(calls_->embedding(false).release + 1);
  }
  void begin_embedding_backward() override {
    if (gathers_) advance(calls_->embedding(true).fetch + 1);
  }
  void after_backward(std::size_t, Handles& weights) override { take_all(weights); }
  void reduce_root(int key, const GatherUnit&, Handles& weights) override {
    if (key != 1 || !s_.model.tied_embeddings) take_all(weights);
  }
  void end_backward() override {
    if (gathers_) {
      advance(2 * calls_->trace().size());
      if (z_.release >= kReleasesLeftovers) release_leftovers();
    }
    reduce();
  }

  Handles before_update() override {
    Handles alive;
    release_all();
    if (mine_ == 0) return alive;
    const double part = std::ceil(largest_ / static_cast<double>(s_.shard));
    if (!s_.offload_optimizer) {
      t_.enter(Phase::kClip);
      t_.drop(t_.make(bytes(part, kNormBytes), Term::kTemporaries));
      t_.enter(Phase::kOptimizerStep);
    }
    const double updated = s_.offload_optimizer ? here_ : mine_;
    if (s_.master_bytes <= 0 || updated <= 0) return alive;
    const double group = updated <= z_.sub_group ? updated : std::min(updated, z_.sub_group + part / 2);   // tensors are not cut
    if (s_.offload_optimizer) {                     // the backup optimizer is torch's AdamW: one copy of a state
      alive.push_back(t_.make(bytes(group, s_.state_bytes), Term::kOptimizerTemporaries));
      return alive;
    }
    // _prepare_fp32_grad_for_sub_group: flattened in the format of accumulation, then cast to that of the update
    const auto flat = t_.make(bytes(group, z_.accumulation_bytes), Term::kOptimizerTemporaries);
    if (z_.accumulation_bytes == z_.update_bytes) {
      alive.push_back(flat);
    } else {
      alive.push_back(t_.make(bytes(group, z_.update_bytes), Term::kOptimizerTemporaries));
      t_.drop(flat);
    }
    return alive;
  }
  void after_update() override {
    if (!gathers_) return;
    gather_persistent();
    for (std::size_t p = 0; p < second_.size(); ++p)          // invalidate_secondary_tensor
      if (calls_->trace().parameters[p].trained) {
        t_.drop(second_[p]);
        second_[p] = Timeline::kNone;
      }
    drop_all(untraced_second_);
  }

 private:
  static constexpr std::int32_t kNobody = -1;

  struct Group {                        // parameters that one all-gather brings
    ZeroTrace::Ids parameters;
    Timeline::Handle flat = Timeline::kNone;
    int waiting = 0;
    bool arrived = false;
  };

  // ---- a micro step ----

  // Runs all marks before `mark` (ZeroCalls).
  void advance(std::int32_t mark) {
    for (; cursor_ < mark; ++cursor_) {
      const auto entry = cursor_ / 2;
      if (cursor_ % 2 == 0) fetch(entry);
      else
        for (const auto p : plan_->released(entry)) release(p);
    }
  }
  void fetch(std::int32_t entry) {
    issue(plan_->own(entry));
    for (const auto p : calls_->trace().needs(entry)) wait(p);
    issue(plan_->ahead(entry));
  }
  TraceLimits limits() const { return {z_.prefetch_bucket, z_.max_live, z_.max_reuse, z_.parameter_buffers}; }

  // A micro step that begins with what the one before left.
  void start_with_leftovers() {
    if (z_.release >= kReleasesLeftovers) return;
    const auto& parameters = calls_->trace().parameters;
    std::vector<char> start(parameters.size(), 0);
    double more = 0;
    for (std::size_t p = 0; p < start.size(); ++p) {
      start[p] = parameters[p].persists || data_[p] >= 0;
      if (start[p] && !parameters[p].persists) more += static_cast<double>(parameters[p].elements);
    }
    if (more <= 0) return;
    // the same releases start to count at zero with each step, the others with each micro step (reset_step)
    if (start != start_) following_ = calls_->trace().recorded(limits(), false, start, ZeroCalls::counts_twice(s_) ? more : 0);
    start_ = std::move(start);
    plan_ = &following_;
  }
  const TraceParameter& parameter(std::int32_t p) const { return calls_->trace().parameters[static_cast<std::size_t>(p)]; }

  int stream() const { return z_.overlap ? kGather : kCompute; }
  double ranks_of(std::int32_t p) const {
    return static_cast<double>(!second_.empty() && second_[static_cast<std::size_t>(p)] >= 0 ? z_.second_shard : s_.shard);
  }
  double part_of(std::int32_t p) const { return std::ceil(static_cast<double>(parameter(p).elements) / ranks_of(p)); }

  void issue(const ZeroTrace::Span& ids) {
    if (ids.size() == 0) return;
    if (ids.size() == 1 || z_.gathers_one_by_one || z_.mics > 0 || s_.shard <= 1) {
      for (const auto p : ids) issue_one(p);
      return;
    }
    std::map<std::pair<bool, double>, ZeroTrace::Ids> lists;   // all_gather_coalesced: a group for each format
    for (const auto p : ids) lists[{!parameter(p).quantized, parameter(p).bytes}].push_back(p);
    for (const auto& [kind, list] : lists) {
      if (list.size() == 1) issue_one(list.front());
      else issue_group(list, z_.quantized_gathers || !kind.first);
    }
  }

  // _all_gather_sequential: the output is the parameter; offloaded, the rank's part comes up first. With one rank the part is the whole
  // (NoGatherHandle). In 8 bit (qwZ) it is a buffer that is dequantized on arrival.
  void issue_one(std::int32_t p) {
    const auto& it = parameter(p);
    const double part = part_of(p), whole = part * ranks_of(p);
    auto& data = data_[static_cast<std::size_t>(p)];
    if (z_.quantized_gathers || it.quantized) {
      const auto buffer = t_.make(bytes(whole, 1), Term::kGatherBuffers, stream());
      t_.drop(t_.make(bytes(part, s_.offload_parameters ? 3 : 1), Term::kGatherBuffers, stream()));
      const auto half = it.bytes > 2 ? Timeline::kNone : t_.make(bytes(whole, 2), Term::kGatherBuffers, stream());
      data = t_.make(bytes(static_cast<double>(it.elements), it.bytes), Term::kGathered, stream());
      t_.drop(half);
      t_.drop(buffer);
      return;
    }
    data = t_.make(bytes(whole, it.bytes), Term::kGathered, stream());
    if (s_.offload_parameters && s_.shard > 1) t_.drop(t_.make(bytes(part, it.bytes), Term::kGatherBuffers, stream()));
  }

  // _all_gather_dtype: one flat output, from which AllGatherCoalescedHandle.wait copies each parameter; the handle, and the flat tensor
  // with it, lives until the last of them has been waited for.
  void issue_group(const ZeroTrace::Ids& ids, bool quantized) {
    Group g;
    g.parameters = ids;
    g.waiting = static_cast<int>(ids.size());
    double part = 0, whole = 0, each = 0;
    for (const auto p : ids) {
      part += part_of(p);
      whole += part_of(p) * ranks_of(p);
      each = std::max(each, parameter(p).bytes);
    }
    const auto number = static_cast<std::int32_t>(groups_.size());
    if (quantized) {
      const auto local = t_.make(bytes(part, each + 1), Term::kGatherBuffers, stream());
      t_.drop(local);
      t_.drop(t_.make(bytes(whole, 1), Term::kGatherBuffers, stream()));
      g.flat = t_.make(bytes(whole, 2), Term::kGatherBuffers, stream());
    } else {
      g.flat = t_.make(bytes(whole, each), z_.gathers_by_all_reduce ? Term::kGathered : Term::kGatherBuffers, stream());
      if (s_.offload_parameters) t_.drop(t_.make(bytes(part, each), Term::kGatherBuffers, stream()));
    }
    for (const auto p : ids) held_by_[static_cast<std::size_t>(p)] = number;
    groups_.push_back(std::move(g));
  }

  void wait(std::int32_t p) {
    const auto at = static_cast<std::size_t>(p);
    const auto number = held_by_[at];
    if (number == kNobody) return;
    held_by_[at] = kNobody;
    auto& g = groups_[static_cast<std::size_t>(number)];
    if (!g.arrived) {
      g.arrived = true;
      for (const auto q : g.parameters) {
        const auto& it = parameter(q);
        data_[static_cast<std::size_t>(q)] = z_.gathers_by_all_reduce   // views of the flat tensor
                                                 ? t_.share(g.flat)
                                                 : t_.make(bytes(static_cast<double>(it.elements), it.bytes), Term::kGathered, stream());
      }
    }
    if (--g.waiting == 0) {
      t_.drop(g.flat);
      g.flat = Timeline::kNone;
      if (number + 1 == static_cast<std::int32_t>(groups_.size())) groups_.pop_back();
    }
  }

  void release(std::int32_t p) {
    const auto at = static_cast<std::size_t>(p);
    if (!second_.empty() && second_[at] < 0 && data_[at] >= 0) {          // _partition_param_sec
      const auto& it = parameter(p);
      const double elements = static_cast<double>(it.elements);
      second_[at] = s_.offload_parameters ? Timeline::kNone
                                          : t_.make(bytes(std::ceil(elements / static_cast<double>(z_.second_shard)), it.quantized ? 1 : it.bytes), Term::kParameters);
    }
    if (z_.weights_saved_whole && s_.checkpoint == Setup::Checkpoint::kNone && parameter(p).linear) {
      // torch's own linear keeps a view of the weight from the forward to its backward
      auto& saved = saved_[at];
      t_.drop(saved);
      saved = backward_ ? Timeline::kNone : t_.share(data_[at]);
    }
    t_.drop(data_[at]);
    data_[at] = Timeline::kNone;
  }

  // Blocks that are not traced: only what their forward adds for good.
  void pass_untraced() {
    if (z_.second_shard <= 1 || s_.offload_parameters || !untraced_second_.empty()) return;
    untraced_second_.push_back(t_.make(bytes(calls_->untraced() / static_cast<double>(z_.second_shard), s_.parameter_bytes), Term::kParameters));
  }

  // release_backward_leftovers: what the backward fetched and no hook has let go of.
  void release_leftovers() {
    for (std::size_t p = 0; p < data_.size(); ++p) {
      if (held_by_[p] != kNobody) wait(static_cast<std::int32_t>(p));
      if (data_[p] >= 0 && !calls_->trace().parameters[p].persists) release(static_cast<std::int32_t>(p));
    }
    groups_.clear();
  }

  // step: _partition_all_parameters lets go of everything, what persists too; _post_step gathers that again.
  void release_all() {
    for (std::size_t p = 0; p < data_.size(); ++p) {
      if (held_by_[p] != kNobody) wait(static_cast<std::int32_t>(p));
      if (data_[p] >= 0) release(static_cast<std::int32_t>(p));
    }
    for (auto& h : saved_) {
      t_.drop(h);
      h = Timeline::kNone;
    }
    groups_.clear();
    t_.drop(untraced_gathered_);
    untraced_gathered_ = Timeline::kNone;
  }
  void gather_persistent() {
    if (s_.shard <= 1 && !s_.offload_parameters) return;
    for (std::size_t p = 0; p < data_.size(); ++p) {
      const auto& it = calls_->trace().parameters[p];
      if (it.persists && it.elements > 0 && data_[p] < 0)
        data_[p] = t_.make(bytes(part_of(static_cast<std::int32_t>(p)) * ranks_of(static_cast<std::int32_t>(p)), it.bytes), Term::kGathered);
    }
    if (untraced_gathered_ < 0) untraced_gathered_ = t_.make(bytes(calls_->untraced_persistent(), s_.parameter_bytes), Term::kGathered);
  }

  // ---- gradients ----

  void take_all(Handles& weights) {
    for (auto h : weights) reduce_later(h);
    weights.clear();
  }
  int reduce_stream() const { return z_.overlap ? kReduce : kCompute; }

  // reduce_independent_p_g_buckets_and_remove_grads
  void reduce_later(Timeline::Handle gradient) {
    const double elements = static_cast<double>(t_.bytes(gradient)) / gradient_bytes_;
    if (filled_ > 0 && filled_ + elements > z_.reduce_bucket) reduce();
    const bool copied = z_.contiguous && filled_ + elements <= z_.reduce_bucket;
    filled_ += elements;
    largest_in_bucket_ = std::max(largest_in_bucket_, elements);
    ++count_;
    if (copied) t_.drop(gradient);
    else held_.push_back(gradient);
  }

  // __reduce_and_partition_ipg_grads, __avg_scatter_grads, reduce_scatter_coalesced
  void reduce() {
    if (count_ == 0) return;
    const double ranks = static_cast<double>(s_.shard);
    Handles made;
    if (z_.communication_bytes != gradient_bytes_) made.push_back(t_.make(bytes(filled_, z_.communication_bytes), Term::kReduceBuffers, reduce_stream()));
    const bool in_place = s_.shard <= 1 || (count_ == 1 && std::fmod(filled_, ranks) == 0);
    if (z_.quantized_gradients && s_.plan.nodes > 1)          // all_to_all_quant_reduce, tensor by tensor in 4 bit: swizzled and received
      made.push_back(t_.make(bytes(largest_in_bucket_, 1) + bytes(filled_ / ranks, z_.communication_bytes), Term::kReduceBuffers, reduce_stream()));
    else if (!in_place) made.push_back(t_.make(bytes(filled_, z_.communication_bytes), Term::kReduceBuffers, reduce_stream()));
    if (z_.accumulation_bytes != z_.communication_bytes) made.push_back(t_.make(bytes(filled_ / ranks, z_.accumulation_bytes), Term::kReduceBuffers, reduce_stream()));
    if (s_.offload_optimizer)            // partition_grads: the part comes back up for its norm in fp64 and its cast
      t_.drop(t_.make(bytes(std::ceil(largest_in_bucket_ / ranks), z_.accumulation_bytes + kNormBytes), Term::kReduceBuffers, reduce_stream()));
    drop_all(made);
    drop_all(held_);
    filled_ = largest_in_bucket_ = 0;
    count_ = 0;
  }

  const ZeroSettings& z_;
  const bool gathers_;
  double gradient_bytes_ = 2;
  double mine_ = 0, largest_ = 0, here_ = 0;       // elements; `here_` updated on the device beside an offloaded optimizer

  std::unique_ptr<ZeroCalls> calls_;
  ZeroTrace::Plan first_, recorded_, following_;
  std::vector<char> start_;                        // that `following_` begins with
  const ZeroTrace::Plan* plan_ = nullptr;
  bool started_ = false, last_ = true, backward_ = false;
  std::size_t block_ = 0;              // that is watched
  Pass pass_ = Pass::kForward;
  std::int32_t cursor_ = 0;
  std::vector<Timeline::Handle> data_, second_, saved_;
  std::vector<std::int32_t> held_by_;              // group of a parameter in flight
  std::vector<Group> groups_;
  Timeline::Handle untraced_gathered_ = Timeline::kNone;
  Handles untraced_second_;

  double filled_ = 0, largest_in_bucket_ = 0;      // of the bucket
  int count_ = 0;
  Handles held_;
};

}  // namespace

std::unique_ptr<Sharder> make_zero3(const Setup& s, Timeline& t) { return std::make_unique<Zero3>(s, t); }

}  // namespace shardfit::memory
