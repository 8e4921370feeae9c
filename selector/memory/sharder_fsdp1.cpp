#include "selector/memory/sharders.hpp"

#include <algorithm>

namespace shardfit::memory {
namespace {

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

}  // namespace

std::unique_ptr<Sharder> make_fsdp1(const Setup& s, Timeline& t) { return std::make_unique<Fsdp1>(s, t); }

}  // namespace shardfit::memory
