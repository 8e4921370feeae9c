// One optimizer step as the list of what happens: gather, compute, release, reduce, update. The runtime executes this
// list, memory sums its buffers and time prices its events, so that prediction and execution cannot drift apart.
//
// Micro steps repeat `micro` once each; then `update` runs. All buffers are allocated once, before step 1, and live
// until the end.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "selector/schedule/activations.hpp"
#include "selector/schedule/units.hpp"

namespace shardfit::job {
struct Job;
struct Plan;
}  // namespace shardfit::job
namespace shardfit::model {
struct Model;
}

namespace shardfit::schedule {

enum class EventKind {
  kGather,     // all-gather of a unit's parameters into `slot`; bytes = what every rank ends up with
  kRelease,    // `slot` is free again
  kEmbed,      // token ids -> residual stream (root unit)
  kForward,    // a block's forward; keeps what backward needs unless the block is checkpointed
  kLoss,       // final norm, output projection, cross-entropy, forward and backward in one, chunk by chunk (root unit)
  kRecompute,  // a checkpointed block's forward again
  kBackward,   // a block's backward
  kEmbedBackward,  // gradient of the embedding tables (root unit)
  kReduce,    // sum of a unit's gradients over the ranks: reduce-scatter (stage 3) or all-reduce (stage 0); bytes = the
              // whole unit's
  kClip,      // global norm: one all-reduce of a number, read over the gradients held
  kOptimizer  // AdamW over what the rank holds of a unit; bytes = read and written
};
std::string_view name_of(EventKind kind);

struct Event {
  EventKind kind = EventKind::kForward;
  int unit = 0;            // index into Step::units
  int slot = -1;           // gathered buffer: -1 = the parameters lie whole on the rank, else index of "gathered K"
  int saved = -1;          // activation set of a block (kForward, kRecompute, kBackward)
  std::int64_t bytes = 0;  // moved between ranks (kGather, kReduce, kClip) or touched (kOptimizer)
  bool last_micro_step_only = false;
};

// A buffer of the run; `what` groups them for people.
struct Buffer {
  std::string name;  // unique
  std::string
      what;  // "parameters", "optimizer states", "gradients", "gathered parameters", "activations", "scratch", ...
  std::int64_t bytes = 0;
};

struct Step {
  Sizes sizes;
  std::int64_t ranks = 1;          // data-parallel ranks
  bool sharded = false;            // stage 3 on more than one rank
  std::int64_t micro_steps = 1;    // gradient accumulation
  std::vector<Unit> units;         // units[0] root, units[1 + i] block i
  std::vector<bool> checkpointed;  // by block
  int slots = 0;                   // gathered buffers for blocks; slot 0 is the root unit's, slots 1.. the blocks'
  int saved_sets = 0;              // activation sets
  std::vector<Event> micro, update;
  std::vector<Buffer> buffers;

  const Buffer& buffer(std::string_view name) const;  // throws std::logic_error
  bool has_buffer(std::string_view name) const;
  std::int64_t buffer_bytes() const;
  // Elements of a unit that a rank holds of parameters, gradients and states.
  std::int64_t held_elements(const Unit& unit) const { return sharded ? unit.shard_elements : unit.elements; }
  std::int64_t held_elements() const;
};

// Throws Error where job, plan or model cannot be run (supported.hpp).
Step build_step(const model::Model& model, const job::Job& job, const job::Plan& plan);

inline constexpr std::int64_t kCommStageBytes = std::int64_t{1}
                                                << 20;  // a rank's staging buffer in shared memory, one of two
// What a rank maps to talk to the others: on one host two staging buffers and a page of counters for each rank.
std::int64_t communication_bytes(std::int64_t ranks);

}  // namespace shardfit::schedule
