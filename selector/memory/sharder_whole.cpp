#include "selector/memory/sharders.hpp"

namespace shardfit::memory {
namespace {

// Data parallel without sharded parameters: DDP, ZeRO-0. Gradients stay as autograd made them; DDP has buckets beside them.
class WholeParameters final : public Sharder {
 public:
  using Sharder::Sharder;

  void allocate_fixed(const GatherUnit& all) override {
    if (all.trained > 0 && s_.engine == Engine::kDdp && s_.gpus > 1)
      t_.make(all.trained * static_cast<std::int64_t>(s_.adapters.any ? s_.adapters.bytes : s_.gradient_bytes), Term::kReduceBuffers);
  }
  void after_backward(std::size_t unit, Handles& weights) override { keep(unit, weights); }
  void reduce_root(int key, const GatherUnit&, Handles& weights) override { keep(kRoot + static_cast<std::size_t>(key), weights); }
};

}  // namespace

std::unique_ptr<Sharder> make_whole(const Setup& s, Timeline& t) { return std::make_unique<WholeParameters>(s, t); }

}  // namespace shardfit::memory
