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
  void begin_micro_step(bool last) override { last_micro_step_ = last; }
  void before_forward(std::size_t k) override {
    if (!gathers(s_)) return;
    if (full_.size() < units.size()) full_.resize(units.size());
    if (full_[k].whole < 0) full_[k] = gather(units[k]);
    if (s_.forward_prefetch && k + 1 < units.size() && full_[k + 1].whole < 0) full_[k + 1] = gather(units[k + 1]);
  }
  void after_forward(std::size_t k) override {
    if (!gathers(s_) || s_.reshard == job::Sharding::Reshard::kFalse) return;
    free(full_[k]);
  }
  void before_backward(std::size_t k) override {
    if (!gathers(s_)) return;
    if (full_[k].whole < 0) full_[k] = gather(units[k]);
    // BACKWARD_PRE gathers the unit that comes next while this one computes; frozen units under re-entrant checkpointing have no
    // pre-backward hook order to do that by
    const bool prefetches = s_.prefetch_backward && !(s_.reentrant && s_.checkpoint == Setup::Checkpoint::kFull);
    if (prefetches && k > 0 && full_[k - 1].whole < 0) full_[k - 1] = gather(units[k - 1]);
  }
  void after_backward(std::size_t k, Handles& weights) override {
    Gathered full;
    if (gathers(s_)) std::swap(full, full_[k]);
    reduce(k, units[k], weights, full);
  }
  void gather_root(int key, const GatherUnit& unit, bool) override {
    if (gathers(s_)) root_[key] = gather(unit);
  }
  void release_root(int key) override { free(root_[key]); }
  void reduce_root(int key, const GatherUnit& unit, Handles& weights) override {
    Gathered full;
    std::swap(full, root_[key]);
    reduce(kRoot + static_cast<std::size_t>(key), unit, weights, full);
  }

 private:
  struct Gathered {
    Timeline::Handle whole = Timeline::kNone;
    Timeline::Handle shard = Timeline::kNone;   // of parameters that live on the CPU: _flat_param.py pre_unshard brings it to the device
  };
  Gathered gather(const GatherUnit& unit) {
    Gathered g;
    if (s_.offload_parameters) g.shard = t_.make(unit.gather_bytes / std::max<std::int64_t>(1, s_.shard), Term::kGathered);
    g.whole = t_.make(unit.gather_bytes, Term::kGathered, kGather);
    return g;
  }
  void free(Gathered& g) {
    t_.drop(g.whole);
    t_.drop(g.shard);
    g = {};
  }
  void reduce(std::size_t key, const GatherUnit& unit, Handles& weights, Gathered full) {
    if (s_.shard == 1 && !s_.offload_parameters && !s_.flat_whole) {
      free(full);
      keep(key, weights);
      return;
    }
    if (unit.trained == 0) {
      free(full);
      drop_all(weights);
      return;
    }
    // Where a flat parameter holds frozen parts as well (litgpt's adapters, partial training), gradient and reduction are as large as
    // all of it: split_with_sizes_backward fills in zeros for what has no gradient, then concatenates
    const std::int64_t everything = unit.elements + unit.adapters;
    const bool mixed = s_.adapters.any ? !s_.adapters.own_units : unit.trained < everything;
    const std::int64_t trained = mixed ? everything : unit.trained;
    const auto bytes = [](std::int64_t elements, double each) { return static_cast<std::int64_t>(static_cast<double>(elements) * each); };
    const double cb = s_.adapters.any ? s_.adapters.bytes : s_.weight_gradient_bytes;
    const double rb = s_.adapters.any ? s_.adapters.bytes : s_.reduce_bytes;
    const double gb = s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes;
    const auto zeros = mixed ? t_.make(bytes(trained - unit.trained, cb), Term::kReduceBuffers) : Timeline::kNone;
    const auto flat = t_.make(bytes(trained, cb), Term::kReduceBuffers);
    t_.drop(zeros);
    drop_all(weights);
    free(full);
    if (s_.flat_whole || (s_.no_sync && !last_micro_step_)) {   // NO_SHARD all-reduces in place
      if (has(key)) {
        t_.drop(flat);
      } else {
        t_.retag(flat, s_.flat_whole ? Term::kGradients : Term::kUnshardedGradients);
        put(key, flat);
      }
      return;
    }
    take_back(key);                    // what earlier micro steps kept unsharded was added to in place, and is reduced now
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

  // Lets go of the unsharded gradient of a unit once it is reduced; a sharded one stays and is added to.
  void take_back(std::size_t key) {
    if (!s_.no_sync) return;
    for (auto it = gradients_.begin(); it != gradients_.end(); ++it)
      if (it->key == key) {
        t_.drop(it->handle);
        gradients_.erase(it);
        return;
      }
  }

  std::vector<Gathered> full_;
  Gathered root_[3];
  bool last_micro_step_ = true;
};

}  // namespace

std::unique_ptr<Sharder> make_fsdp1(const Setup& s, Timeline& t) { return std::make_unique<Fsdp1>(s, t); }

}  // namespace shardfit::memory
