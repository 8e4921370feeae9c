#include "selector/memory/sharder.hpp"

#include <algorithm>

namespace shardfit::memory {

void GatherUnit::add(const UnitSizes& u) {
  gather_bytes += u.gather_bytes;
  elements += u.elements;
  trained += u.trained;
  trained_shard += u.trained_shard;
  adapters += u.adapters;
  largest_leaf = std::max(largest_leaf, u.largest);
}

bool Sharder::has(std::size_t key) const {
  return std::any_of(gradients_.begin(), gradients_.end(), [key](const Kept& k) { return k.key == key; });
}

void Sharder::drop_all(Handles& weights) {
  for (auto h : weights) t_.drop(h);
  weights.clear();
}

void Sharder::keep(std::size_t key, Handles& weights) {
  if (s_.in_backward || has(key)) {
    drop_all(weights);
    return;
  }
  for (auto h : weights) put(key, h);
  weights.clear();
}

void Sharder::zero_gradients() {
  if (s_.gradients_persist) return;
  for (const auto& k : gradients_) t_.drop(k.handle);
  gradients_.clear();
}

namespace {

// Data parallel without sharded parameters: DDP, ZeRO-0 to 2, Megatron. Gradients stay as autograd made them, or go to buffers.
class WholeParameters final : public Sharder {
 public:
  using Sharder::Sharder;

  void allocate_fixed(const GatherUnit& all) override {
    if (all.trained == 0) return;
    if (s_.engine == Engine::kDdp && s_.gpus > 1)
      t_.make(all.trained * static_cast<std::int64_t>(s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes), Term::kReduceBuffers);
    // Megatron's main gradient buffer; its FSDP shards it from "optim_grads" (stage 2) on
    if (s_.engine == Engine::kMegatron)
      t_.make(static_cast<std::int64_t>(static_cast<double>(s_.stage >= 2 ? all.trained_shard : all.trained) * s_.gradient_bytes), Term::kGradients);
    if (s_.engine == Engine::kZero && (s_.stage == 2 || (s_.stage == 1 && s_.colossal))) {
      const double bucket = std::min(s_.reduce_bucket, static_cast<double>(all.trained));
      const int count = s_.overlap_comm ? 2 : 1;
      for (int i = 0; i < count; ++i) t_.make(static_cast<std::int64_t>(bucket * 2), Term::kReduceBuffers);
    }
  }
  void after_backward(std::size_t unit, Handles& weights) override { settle(unit, units[unit], weights); }
  void reduce_root(int key, const GatherUnit& unit, Handles& weights) override { settle(kRoot + static_cast<std::size_t>(key), unit, weights); }

 private:
  void settle(std::size_t key, const GatherUnit& unit, Handles& weights) {
    if (s_.engine == Engine::kMegatron) {      // added to the main buffer at once
      drop_all(weights);
      return;
    }
    if (s_.engine == Engine::kZero && s_.stage == 2) {
      drop_all(weights);
      if (!has(key) && unit.trained > 0 && !s_.offload_gradients && !s_.offload_optimizer)
        put(key, t_.make(static_cast<std::int64_t>(static_cast<double>(unit.trained_shard) * (s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes)), Term::kGradients));
      return;
    }
    keep(key, weights);
  }
};

bool gathers(const Setup& s) { return s.stage == 3 && (s.shard > 1 || s.offload_parameters); }

// FSDP2 (torch/distributed/fsdp/_fully_shard): the all-gather output lives on a stream of its own until the next unit's copy-out;
// the last unit and the root stay gathered; gradients are reduced on a third stream.
class Fsdp2 : public Sharder {
 public:
  using Sharder::Sharder;

  void before_forward(std::size_t k) override {
    if (!gathers(s_)) return;
    const auto ag = t_.make(units[k].gather_bytes, Term::kGatherBuffers, kGather);
    t_.drop(previous_);
    ensure();
    if (full_[k] < 0) full_[k] = t_.make(units[k].gather_bytes, Term::kGathered);
    previous_ = ag;
  }
  void after_forward(std::size_t k) override {
    if (!gathers(s_)) return;
    const bool last = k + 1 == units.size();
    using R = job::Sharding::Reshard;
    const bool stays = s_.reshard == R::kFalse || (last && s_.reshard == R::kTrue) || s_.pp > 1;
    if (!stays) {
      t_.drop(full_[k]);
      full_[k] = Timeline::kNone;
    }
  }
  void before_backward(std::size_t k) override {
    if (!gathers(s_)) return;
    if (full_[k] < 0) {
      auto ag = prefetched_ >= 0 ? prefetched_ : t_.make(units[k].gather_bytes, Term::kGatherBuffers, kGather);
      prefetched_ = Timeline::kNone;
      full_[k] = t_.make(units[k].gather_bytes, Term::kGathered);
      t_.drop(ag);
    }
    if (k > 0 && full_[k - 1] < 0 && prefetched_ < 0) prefetched_ = t_.make(units[k - 1].gather_bytes, Term::kGatherBuffers, kGather);
  }
  void after_backward(std::size_t k, Handles& weights) override {
    Timeline::Handle full = gathers(s_) ? full_[k] : Timeline::kNone;
    if (gathers(s_) && !(s_.pp > 1)) full_[k] = Timeline::kNone;
    else full = Timeline::kNone;
    reduce(k, units[k], weights, full);
  }
  void gather_root(int key, const GatherUnit& unit, bool in_backward) override {
    if (!gathers(s_)) return;
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
    const auto full = root_[key];
    root_[key] = Timeline::kNone;
    reduce(kRoot + static_cast<std::size_t>(key), unit, weights, full);
  }
  void end_forward() override {
    t_.drop(previous_);
    previous_ = Timeline::kNone;
  }
  void end_backward() override {
    t_.drop(reduce_input_);
    reduce_input_ = Timeline::kNone;
  }

 protected:
  void ensure() {
    if (full_.size() < units.size()) full_.resize(units.size(), Timeline::kNone);
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
    const double rb = s_.adapters.any ? s_.adapters.bytes : s_.reduce_bytes;
    const double gb = s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes;
    const auto bytes = [](std::int64_t elements, double each) { return static_cast<std::int64_t>(static_cast<double>(elements) * each); };
    if (s_.no_sync) {                  // unsharded_accumulated_grad, in the reduce format
      if (!has(key)) put(key, t_.make(bytes(unit.trained, rb), Term::kUnshardedGradients));
      drop_all(weights);
      return;
    }
    t_.drop(reduce_input_);
    // torch 2.4 also put the reduce-scatter input on the reduce stream (_fsdp_collectives.py)
    const bool old = s_.torch_date < 20240701;
    reduce_input_ = t_.make(bytes(unit.trained, rb), Term::kReduceBuffers, old ? kReduce : kCompute);
    drop_all(weights);
    auto shard = t_.make(bytes(unit.trained_shard, rb), Term::kGradients, kReduce);
    if (s_.offload_gradients || s_.in_backward || has(key)) {
      t_.drop(shard);
    } else {
      if (gb != rb) {
        const auto cast = t_.make(bytes(unit.trained_shard, gb), Term::kGradients, kReduce);
        t_.drop(shard);
        shard = cast;
      }
      put(key, shard);
    }
  }

  std::vector<Timeline::Handle> full_;
  Timeline::Handle previous_ = Timeline::kNone, prefetched_ = Timeline::kNone, reduce_input_ = Timeline::kNone;
  Timeline::Handle root_[3] = {Timeline::kNone, Timeline::kNone, Timeline::kNone};
};

// FSDP1 (torch/distributed/fsdp/_runtime_utils.py): flat parameters; autograd's gradients are concatenated flat, then reduced.
class Fsdp1 final : public Sharder {
 public:
  using Sharder::Sharder;

  void allocate_fixed(const GatherUnit&) override {
    if (!gathers(s_)) return;
    t_.delay_frees(kGather, static_cast<int>(s_.gathers_in_flight));
    t_.delay_frees(kSecondGather, 1);
  }
  void before_forward(std::size_t k) override {
    if (!gathers(s_)) return;
    if (full_.size() < units.size()) full_.resize(units.size(), Timeline::kNone);
    if (full_[k] < 0) full_[k] = t_.make(units[k].gather_bytes, Term::kGathered, kGather);
  }
  void after_forward(std::size_t k) override {
    if (!gathers(s_) || s_.reshard == job::Sharding::Reshard::kFalse) return;
    t_.drop(full_[k]);
    full_[k] = Timeline::kNone;
  }
  void before_backward(std::size_t k) override {
    if (!gathers(s_)) return;
    if (full_[k] < 0) {
      full_[k] = prefetched_ >= 0 ? prefetched_ : t_.make(units[k].gather_bytes, Term::kGathered, kGather);
      prefetched_ = Timeline::kNone;
    }
    // frozen units under re-entrant checkpointing have no pre-backward hook order to prefetch by
    const bool prefetches = !(s_.reentrant && s_.checkpoint == Setup::Checkpoint::kFull);
    if (k > 0 && full_[k - 1] < 0 && prefetches && prefetched_ < 0) prefetched_ = t_.make(units[k - 1].gather_bytes, Term::kGathered, kGather);
  }
  void after_backward(std::size_t k, Handles& weights) override {
    Timeline::Handle full = Timeline::kNone;
    if (gathers(s_)) {
      full = full_[k];
      full_[k] = Timeline::kNone;
    }
    reduce(k, units[k], weights, full);
  }
  void gather_root(int key, const GatherUnit& unit, bool) override {
    if (gathers(s_)) root_[key] = t_.make(unit.gather_bytes, Term::kGathered, kGather);
  }
  void release_root(int key) override {
    t_.drop(root_[key]);
    root_[key] = Timeline::kNone;
  }
  void reduce_root(int key, const GatherUnit& unit, Handles& weights) override {
    const auto full = root_[key];
    root_[key] = Timeline::kNone;
    reduce(kRoot + static_cast<std::size_t>(key), unit, weights, full);
  }

 private:
  void reduce(std::size_t key, const GatherUnit& unit, Handles& weights, Timeline::Handle full) {
    if (s_.shard == 1 && !s_.offload_parameters) {
      t_.drop(full);
      keep(key, weights);
      return;
    }
    if (unit.trained == 0) {
      t_.drop(full);
      drop_all(weights);
      return;
    }
    // litgpt wraps adapters inside the block's flat parameter: gradient and reduction are the size of the whole block
    const std::int64_t trained = s_.adapters.any && !s_.adapters.own_units ? unit.elements + unit.adapters : unit.trained;
    const auto bytes = [](std::int64_t elements, double each) { return static_cast<std::int64_t>(static_cast<double>(elements) * each); };
    const double cb = s_.adapters.any ? s_.adapters.bytes : s_.weight_gradient_bytes;
    const double rb = s_.adapters.any ? s_.adapters.bytes : s_.reduce_bytes;
    const double gb = s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes;
    const auto flat = t_.make(bytes(trained, cb), Term::kReduceBuffers);
    drop_all(weights);
    t_.drop(full);
    if (s_.no_sync) {
      if (has(key)) {
        t_.drop(flat);
      } else {
        t_.retag(flat, Term::kUnshardedGradients);
        put(key, flat);
      }
      return;
    }
    const auto input = rb != cb ? t_.make(bytes(trained, rb), Term::kReduceBuffers, kReduce) : Timeline::kNone;
    auto shard = t_.make(bytes((trained + s_.shard - 1) / s_.shard, rb), Term::kGradients, kReduce);
    t_.drop(input);
    t_.drop(flat);
    if (s_.offload_gradients || has(key)) {
      t_.drop(shard);
      return;
    }
    if (gb != rb) {
      const auto cast = t_.make(bytes((trained + s_.shard - 1) / s_.shard, gb), Term::kGradients, kReduce);
      t_.drop(shard);
      shard = cast;
    }
    put(key, shard);
  }

  std::vector<Timeline::Handle> full_;
  Timeline::Handle prefetched_ = Timeline::kNone;
  Timeline::Handle root_[3] = {Timeline::kNone, Timeline::kNone, Timeline::kNone};
};

// ZeRO-3 (deepspeed/runtime/zero/partitioned_param_coordinator.py): modules are fetched one by one, prefetch_bucket elements ahead;
// what is used again within max_reuse_distance elements of the trace stays.
class Zero3 final : public Sharder {
 public:
  using Sharder::Sharder;

  void allocate_fixed(const GatherUnit& all) override {
    if (all.trained == 0) return;
    // ipg buffer (contiguous_gradients), and the flat buffer of gradient partitions
    if (s_.contiguous_gradients) t_.make(static_cast<std::int64_t>(std::min(s_.reduce_bucket, static_cast<double>(all.trained)) * gradient_bytes()), Term::kReduceBuffers);
    if (!s_.offload_optimizer && !s_.offload_gradients) t_.make(static_cast<std::int64_t>(static_cast<double>(all.trained_shard) * gradient_bytes()), Term::kGradients);
  }
  void before_forward(std::size_t k) override {
    if (!gathers(s_)) return;
    if (full_.size() < units.size()) {
      full_.resize(units.size(), Timeline::kNone);
      kept_.assign(units.size(), 0);
      double after = 0;
      const double uses = s_.checkpoint == Setup::Checkpoint::kNone ? 2 : 3;   // forward, (recompute,) backward
      for (std::size_t i = units.size(); i-- > 0;) {
        kept_[i] = after * uses < s_.max_reuse;
        after += static_cast<double>(units[i].elements);
      }
    }
    if (full_[k] < 0) full_[k] = t_.make(live(k, kept_[k]), Term::kGathered, kGather);
  }
  void after_forward(std::size_t k) override {
    if (!gathers(s_) || kept_[k]) return;
    t_.drop(full_[k]);
    full_[k] = Timeline::kNone;
  }
  void before_backward(std::size_t k) override {
    if (!gathers(s_)) return;
    const bool whole = s_.checkpoint != Setup::Checkpoint::kNone;
    if (full_[k] < 0) full_[k] = t_.make(live(k, whole), Term::kGathered, kGather);
  }
  void after_backward(std::size_t k, Handles& weights) override {
    if (gathers(s_)) {
      t_.drop(full_[k]);
      full_[k] = Timeline::kNone;
    }
    drop_all(weights);                  // copied into the bucket, reduced and partitioned
  }
  void gather_root(int key, const GatherUnit& unit, bool) override {
    if (gathers(s_)) root_[key] = t_.make(unit.gather_bytes, Term::kGathered, kGather);
  }
  void release_root(int key) override {
    t_.drop(root_[key]);
    root_[key] = Timeline::kNone;
  }
  void reduce_root(int key, const GatherUnit&, Handles& weights) override {
    release_root(key);
    drop_all(weights);
  }

 private:
  double gradient_bytes() const { return s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes; }
  std::int64_t live(std::size_t k, bool whole) const {
    const auto& u = units[k];
    if (u.elements == 0) return u.gather_bytes;
    // Recomputed and used again in backward, a weight stays only where less than max_reuse elements lie in between: the last
    // max_reuse / 2 of the block.
    const double again = whole ? s_.max_reuse / 2 : 0;
    if (whole && static_cast<double>(u.elements) <= s_.max_reuse) return u.gather_bytes;
    const double each = static_cast<double>(u.gather_bytes) / static_cast<double>(u.elements);
    const double leaf = std::max<double>(static_cast<double>(u.largest_leaf), static_cast<double>(u.elements) / 8);
    return static_cast<std::int64_t>(std::min(static_cast<double>(u.elements), leaf + s_.prefetch_bucket + again) * each);
  }

  std::vector<Timeline::Handle> full_;
  std::vector<char> kept_;
  Timeline::Handle root_[3] = {Timeline::kNone, Timeline::kNone, Timeline::kNone};
};

}  // namespace

std::unique_ptr<Sharder> make_sharder(const Setup& s, Timeline& t) {
  if (s.stage == 3 && s.engine == Engine::kFsdp1) return std::make_unique<Fsdp1>(s, t);
  if (s.stage == 3 && s.engine == Engine::kZero) return std::make_unique<Zero3>(s, t);
  if (s.stage == 3) return std::make_unique<Fsdp2>(s, t);
  return std::make_unique<WholeParameters>(s, t);
}

}  // namespace shardfit::memory
