// The words in which memory is told: the phases of a step and the kinds of thing that are alive in it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardfit::memory {

enum class Phase : std::uint8_t { kLoad, kForward, kLoss, kBackward, kClip, kOptimizerStep, kSave };
inline constexpr std::size_t kPhases = 7;

enum class Term : std::uint8_t {
  kParameters,           // what the rank keeps of the weights, at rest
  kMaster,               // fp32 copy of them
  kOptimizerStates,
  kGradients,            // as they lie until the step
  kUnshardedGradients,   // whole gradients kept by accumulation without sync, or by a pipeline
  kGathered,             // parameters of other ranks while a unit computes
  kGatherBuffers,        // flat all-gather outputs, prefetched units
  kReduceBuffers,        // flat gradients, reduce-scatter inputs, buckets
  kActivations,          // kept for backward
  kRecomputed,           // activations of the block that is recomputed right now
  kActivationGradients,
  kTemporaries,          // inside one operator
  kLogits,               // logits and everything the loss keeps
  kOptimizerTemporaries,
  kBuffers,              // rotary tables, masks, cuBLAS workspace
  kBatch,                // token ids, labels
  kCasts,                // weights cast by autocast, fp8 copies
  kCache,                // key-value cache in kept outputs
  kLoading,              // whole tensors while weights are read in
  kSwap,                 // staging buffers of offload
  kCount
};
inline constexpr std::size_t kTerms = static_cast<std::size_t>(Term::kCount);
using TermBytes = std::array<std::int64_t, kTerms>;

std::string_view name_of(Phase phase);  // "load", "forward", ... as in the estimate
std::string_view name_of(Term term);    // "optimizer states", ...

}  // namespace shardfit::memory
