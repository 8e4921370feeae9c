// ZeRO-1 and ZeRO-2 (deepspeed/runtime/zero/stage_1_and_2.py, 0.9 to 0.19): parameters stay whole, gradients are copied into a bucket,
// the bucket is reduced when the next one does not fit, and a rank keeps its own part.
#include <algorithm>

#include "selector/memory/sharders.hpp"

namespace shardfit::memory {
namespace {

constexpr int kHookBuckets = 1803;      // buckets come with the first gradient (setup_buckets); before, backward() made them
constexpr int kCompactGradients = 1907; // fp32 accumulation in one flat buffer (_build_compact_grad_partition_buffer)
constexpr double kNormBytes = 8;        // norms are taken of a copy in fp64

class Zero12 final : public Sharder, public ModuleWatcher {
 public:
  Zero12(const Setup& s, Timeline& t) : Sharder(s, t) {
    gradient_bytes_ = s.adapters.any ? s.adapters.bytes : s.gradient_bytes;
    // engine.py _do_optimizer_sanity_check: stage 1 in bf16 that accumulates in fp32 is bf16_optimizer.py
    bf16_optimizer_ = s.stage == 1 && !s.colossal && s.zero.accumulation_bytes >= 4 && s.parameter_bytes == 2 && !s.offload_optimizer;
    if (s.stage == 1 && s.zero.accumulation_bytes >= 4 && s.parameter_bytes == 2) bucket_bytes_ = 4;
    else bucket_bytes_ = gradient_bytes_ >= 4 && s.parameter_bytes == 2 ? s.parameter_bytes : gradient_bytes_;
  }

  void allocate_fixed(const GatherUnit& all) override {
    if (all.trained == 0) return;
    trained_ = static_cast<double>(all.trained);
    mine_ = static_cast<double>(all.trained_shard);
    largest_ = static_cast<double>(all.largest_leaf);
    if (s_.colossal) {
      for (int i = 0; i < (s_.zero.overlap ? 2 : 1); ++i) t_.make(bytes(std::min(s_.zero.reduce_bucket, trained_), 2), Term::kReduceBuffers);
      return;
    }
    if (bf16_optimizer_) t_.make(bytes(trained_, 4), Term::kGradients);   // fp32_groups_gradients_flat
    if (!bf16_optimizer_ && !s_.offload_optimizer && s_.master_bytes > 0) {
      // the clone that the master copy is cast from; the gradient that initialize_optimizer_states makes and lets go of
      t_.drop(t_.make(bytes(mine_, s_.parameter_bytes), Term::kLoading));
      t_.drop(t_.make(bytes(mine_, s_.zero.update_bytes), Term::kLoading));
    }
    if (s_.offload_optimizer) t_.make(bytes(largest_, s_.parameter_bytes), Term::kSwap);   // temp_grad_buffer_for_gpu_offload
  }

  void prepare(const ModelWalk& walk) override {
    // The rank at the end of the model keeps whole gradients of every parameter that its part touches, the first one included.
    own_elements_ = 0;
    const auto add = [this](const UnitSizes& u) {
      for (std::size_t i = u.whole_tensors.size(); i-- > 0 && own_elements_ < mine_;) own_elements_ += static_cast<double>(u.whole_tensors[i]);
    };
    if (walk.head) add(*walk.head);
    for (std::size_t k = walk.blocks.size(); k-- > 0 && own_elements_ < mine_;) add(*walk.blocks[k].sizes);
    own_elements_ = std::max(own_elements_, mine_);
  }
  void begin_micro_step(bool last) override { last_ = last; }
  void begin_backward() override {
    if (s_.zero.release < kHookBuckets) make_buckets();
  }
  bool takes_gradients() const override {
    if (bf16_optimizer_) return s_.zero.immediate_update;
    return s_.stage >= 2 || (s_.zero.overlap && last_ && !s_.colossal);
  }
  ModuleWatcher* watch(std::size_t block, Pass pass) override {
    in_head_ = block == kHead;
    return pass == Pass::kBackward ? this : nullptr;
  }
  void enter(std::size_t) override {}
  void leave(std::size_t) override {}
  bool take(Timeline::Handle gradient) override {
    if (in_head_ && s_.model.tied_embeddings) return false;    // it waits for the token table's
    reduce_later(gradient);
    return true;
  }

  void after_backward(std::size_t unit, Handles& weights) override { settle(unit, units[unit], weights); }
  void reduce_root(int key, const GatherUnit& unit, Handles& weights) override {
    if (key == 1 && s_.model.tied_embeddings && takes_gradients()) return;
    settle(kRoot + static_cast<std::size_t>(key), unit, weights);
  }
  void end_backward() override {
    if (s_.colossal) return;
    if (bf16_optimizer_) {              // engine.py allreduce_bucket: the flat fp32 gradient in the format of communication
      if (last_ && s_.zero.communication_bytes < 4) t_.drop(t_.make(bytes(trained_, s_.zero.communication_bytes), Term::kReduceBuffers));
      return;
    }
    if (!takes_gradients() && last_) {              // reduce_gradients after the backward of stage 1
      make_buckets();
      for (const auto& k : gradients_) reduce_later(k.handle);
      gradients_.clear();
    }
    if (s_.stage >= 2 || last_) {
      reduce();
      for (auto h : buckets_) t_.drop(h);
      buckets_.clear();
      accumulate();
    }
  }

  Handles before_update() override {
    Handles alive;
    if (s_.offload_optimizer || mine_ == 0) return alive;
    t_.enter(Phase::kClip);
    if (!s_.colossal) t_.drop(t_.make(bytes(std::min(largest_, mine_), kNormBytes), Term::kTemporaries));
    t_.enter(Phase::kOptimizerStep);
    if (s_.master_bytes <= 0 || bf16_optimizer_) return alive;
    if (s_.colossal) {
      alive.push_back(t_.make(bytes(mine_, 4), Term::kOptimizerTemporaries));
      return alive;
    }
    const double accumulated = s_.zero.accumulation_bytes;
    const bool flat_already = accumulated >= 4 && s_.stage >= 2 && s_.zero.release >= kCompactGradients;
    auto flat = flat_already ? Timeline::kNone : t_.make(bytes(mine_, accumulated), Term::kOptimizerTemporaries);
    if (accumulated != s_.zero.update_bytes) {
      alive.push_back(t_.make(bytes(mine_, s_.zero.update_bytes), Term::kOptimizerTemporaries));
      t_.drop(flat);
    } else if (flat >= 0) {
      alive.push_back(flat);
    }
    if (!flat_already) {
      t_.drop(accumulated_);
      accumulated_ = Timeline::kNone;
    }
    return alive;
  }
  void zero_gradients() override {
    t_.drop(accumulated_);
    accumulated_ = Timeline::kNone;
    Sharder::zero_gradients();
  }

 private:
  static std::int64_t bytes(double elements, double each) { return static_cast<std::int64_t>(elements * each); }
  int reduce_stream() const { return s_.zero.overlap ? kReduce : kCompute; }

  void make_buckets() {
    if (!buckets_.empty() || !s_.zero.contiguous || s_.colossal || bf16_optimizer_ || mine_ == 0) return;
    for (int i = 0; i < (s_.zero.overlap ? 2 : 1); ++i) buckets_.push_back(t_.make(bytes(s_.zero.reduce_bucket, bucket_bytes_), Term::kReduceBuffers));
  }

  void reduce_later(Timeline::Handle gradient) {
    if (bf16_optimizer_ || s_.colossal) {
      t_.drop(gradient);
      return;
    }
    make_buckets();
    const double elements = static_cast<double>(t_.bytes(gradient)) / gradient_bytes_;
    if (filled_ + elements > s_.zero.reduce_bucket) reduce();
    filled_ += elements;
    largest_in_bucket_ = std::max(largest_in_bucket_, elements);
    ++count_;
    if (s_.zero.contiguous && elements <= s_.zero.reduce_bucket) t_.drop(gradient);   // copied into the bucket
    else held_.push_back(gradient);
  }

  // average_tensor and allreduce_bucket: the slices of a bucket that go to different ranks are flattened into one more copy. The rank that
  // owns the end of the model keeps its part first, while most activations are alive: the fullest one.
  void reduce() {
    if (count_ == 0) return;
    const bool one_slice = s_.shard <= 1 || (count_ == 1 && filled_ <= mine_);
    Handles made;
    if (!one_slice || !s_.zero.contiguous) made.push_back(t_.make(bytes(filled_, bucket_bytes_), Term::kReduceBuffers, reduce_stream()));
    if (s_.zero.communication_bytes != bucket_bytes_) made.push_back(t_.make(bytes(filled_, s_.zero.communication_bytes), Term::kReduceBuffers, reduce_stream()));
    drop_all(made);
    if (s_.offload_optimizer) {
      if (!s_.offload_gradients || last_)           // norm and fp32 copy of each parameter on its way to the host
        t_.drop(t_.make(bytes(std::min(largest_in_bucket_, mine_), kNormBytes), Term::kReduceBuffers, reduce_stream()));
    } else if (own_ < 0) {
      const bool compact = s_.zero.accumulation_bytes >= 4 && s_.parameter_bytes == 2 && s_.zero.release >= kCompactGradients;
      if (compact && accumulated_ < 0) accumulated_ = t_.make(bytes(mine_, 4), Term::kGradients);
      else if (!compact) own_ = t_.make(bytes(own_elements_, bucket_bytes_), Term::kGradients, reduce_stream());
    }
    drop_all(held_);
    filled_ = largest_in_bucket_ = 0;
    count_ = 0;
  }

  // independent_gradient_partition_epilogue: the parts of earlier micro steps and of this one become one.
  void accumulate() {
    if (own_ < 0) return;
    const bool widen = s_.zero.accumulation_bytes > bucket_bytes_;
    if (accumulated_ < 0 && widen) accumulated_ = t_.make(bytes(mine_, s_.zero.accumulation_bytes), Term::kGradients);
    else if (accumulated_ < 0) std::swap(accumulated_, own_);
    t_.drop(own_);
    own_ = Timeline::kNone;
  }

  void settle(std::size_t key, const GatherUnit& unit, Handles& weights) {
    if (s_.colossal && s_.stage >= 2) {             // LowLevelZeroOptimizer with partition_grad
      drop_all(weights);
      if (!has(key) && unit.trained > 0 && !s_.offload_gradients && !s_.offload_optimizer)
        put(key, t_.make(bytes(static_cast<double>(unit.trained_shard), gradient_bytes_), Term::kGradients));
      return;
    }
    if (takes_gradients()) {
      for (auto h : weights) reduce_later(h);
      weights.clear();
      return;
    }
    if (!weights.empty() && s_.zero.release >= kHookBuckets) make_buckets();   // the hook of stage 1 makes them, though it reduces later
    keep(key, weights);
  }

  double gradient_bytes_ = 2, bucket_bytes_ = 2;
  bool bf16_optimizer_ = false, last_ = true, in_head_ = false;
  double trained_ = 0, mine_ = 0, largest_ = 0, own_elements_ = 0;
  double filled_ = 0, largest_in_bucket_ = 0;
  int count_ = 0;
  Handles buckets_, held_;
  Timeline::Handle own_ = Timeline::kNone, accumulated_ = Timeline::kNone;
};

}  // namespace

std::unique_ptr<Sharder> make_zero12(const Setup& s, Timeline& t) { return std::make_unique<Zero12>(s, t); }

}  // namespace shardfit::memory
