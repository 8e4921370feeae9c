#include "selector/memory/terms.hpp"

namespace shardfit::memory {

std::string_view name_of(Phase phase) {
  static constexpr std::string_view kNames[kPhases] = {"load", "forward", "loss", "backward", "clip", "optimizer_step", "save"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view name_of(Term term) {
  static constexpr std::string_view kNames[kTerms] = {"parameters",
                                                      "fp32 master parameters",
                                                      "optimizer states",
                                                      "gradients",
                                                      "unsharded gradients",
                                                      "gathered parameters",
                                                      "all-gather buffers",
                                                      "reduce buffers",
                                                      "activations",
                                                      "recomputed activations",
                                                      "activation gradients",
                                                      "operator temporaries",
                                                      "logits and loss",
                                                      "optimizer temporaries",
                                                      "buffers and workspace",
                                                      "batch",
                                                      "weight casts",
                                                      "key-value cache",
                                                      "tensors at load",
                                                      "swap buffers"};
  return kNames[static_cast<std::size_t>(term)];
}

}  // namespace shardfit::memory
