#include "selector/memory/sharders.hpp"

#include <algorithm>

namespace shardfit::memory {
namespace {

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

std::unique_ptr<Sharder> make_zero3(const Setup& s, Timeline& t) { return std::make_unique<Zero3>(s, t); }

}  // namespace shardfit::memory
