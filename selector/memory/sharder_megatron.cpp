#include "selector/memory/sharders.hpp"

namespace shardfit::memory {
namespace {

// Megatron's DistributedDataParallel (core/distributed/param_and_grad_buffer.py): parameters stay whole, and one buffer holds the
// gradients of all of them for the whole run. Reductions run in place in it; the distributed optimizer reads its part of it. Megatron-FSDP
// shards the buffer from "optim_grads" (stage 2) on.
class MegatronBuffers final : public Sharder {
 public:
  using Sharder::Sharder;

  void allocate_fixed(const GatherUnit& all) override {
    if (all.trained == 0) return;
    t_.make(static_cast<std::int64_t>(static_cast<double>(s_.stage >= 2 ? all.trained_shard : all.trained) * s_.gradient_bytes), Term::kGradients);
  }
  // What autograd made (without gradient accumulation fusion) is added to the buffer by a hook at once.
  void after_backward(std::size_t, Handles& weights) override { drop_all(weights); }
  void reduce_root(int, const GatherUnit&, Handles& weights) override { drop_all(weights); }
};

}  // namespace

std::unique_ptr<Sharder> make_megatron(const Setup& s, Timeline& t) { return std::make_unique<MegatronBuffers>(s, t); }

}  // namespace shardfit::memory
