#include "selector/memory/sharders.hpp"

#include <algorithm>

namespace shardfit::memory {
namespace {

// Data parallel without sharded parameters: DDP, ZeRO-0, Megatron. Gradients stay as autograd made them, or go to buffers.
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
  }
  void after_backward(std::size_t unit, Handles& weights) override { settle(unit, weights); }
  void reduce_root(int key, const GatherUnit&, Handles& weights) override { settle(kRoot + static_cast<std::size_t>(key), weights); }

 private:
  void settle(std::size_t key, Handles& weights) {
    if (s_.engine == Engine::kMegatron) {      // added to the main buffer at once
      drop_all(weights);
      return;
    }
    keep(key, weights);
  }
};

}  // namespace

std::unique_ptr<Sharder> make_whole(const Setup& s, Timeline& t) { return std::make_unique<WholeParameters>(s, t); }

}  // namespace shardfit::memory
