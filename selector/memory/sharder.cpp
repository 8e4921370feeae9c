#include "selector/memory/sharders.hpp"

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

std::unique_ptr<Sharder> make_sharder(const Setup& s, Timeline& t) {
  if (s.gather_parts) return make_parts(s, t, s.engine == Engine::kFsdp1 ? make_fsdp1(s, t) : make_fsdp2(s, t));
  if (s.engine == Engine::kFsdp1 && (s.stage == 3 || s.flat_whole)) return make_fsdp1(s, t);
  if (s.stage == 3 && s.engine == Engine::kZero) return make_zero3(s, t);
  if (s.stage == 3) return make_fsdp2(s, t);
  if (s.engine == Engine::kZero && s.stage >= 1) return make_zero12(s, t);
  if (s.engine == Engine::kMegatron) return make_megatron(s, t);
  return make_whole(s, t);
}

}  // namespace shardfit::memory
