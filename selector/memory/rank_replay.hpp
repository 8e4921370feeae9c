// The replay of one rank: load, two optimizer steps with their micro batches, every block's forward and backward, the update.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "selector/memory/op_rules.hpp"
#include "selector/memory/setup.hpp"
#include "selector/memory/sharder.hpp"
#include "selector/memory/timeline.hpp"
#include "selector/memory/unit_sizes.hpp"

namespace shardfit::memory {

struct StageLayout {
  std::vector<std::int64_t> blocks;    // numbers of the blocks on this rank
  bool chunked = false;                // only `active` is replayed
  std::vector<std::int64_t> active;    // those of the chunk that is run forward and backward at the fullest moment
  bool first = true, last = true;
  std::int64_t predictions = 0;        // blocks of multi-token prediction among them, each with a loss of its own
  struct Held {
    std::vector<std::int64_t> blocks;
    std::int64_t count = 0;
  };
  std::vector<Held> held;              // chunks of further micro batches whose activations are alive
  std::int64_t held_batches() const {
    std::int64_t n = 0;
    for (const auto& h : held) n += h.count;
    return n;
  }
  const std::vector<std::int64_t>& replayed() const { return chunked ? active : blocks; }
};

// Sizes of all units of a model on one rank, worked out once and shared by the stages.
struct ModelSizes {
  std::vector<UnitSizes> blocks;       // by index into Model::blocks
  UnitSizes embedding, head;
  UnitSizes embedding_copy;            // the table alone, as the last stage of a pipeline has it for a tied output projection
  std::vector<int> order;              // index into Model::blocks of each block, encoder first
  std::int64_t encoder_blocks = 0;
  // A block of multi-token prediction, where the setup has any: number order.size(), the last of `blocks`.
  std::optional<model::Block> prediction;

  const UnitSizes& embedding_of(const StageLayout& layout) const { return layout.first || layout.predictions > 0 ? embedding : embedding_copy; }
  int kind(std::int64_t block) const { return static_cast<std::size_t>(block) < order.size() ? order[static_cast<std::size_t>(block)] : static_cast<int>(blocks.size()) - 1; }
  const model::Block& block(const Setup& setup, int kind) const {
    return static_cast<std::size_t>(kind) < setup.model.blocks.size() ? setup.model.blocks[static_cast<std::size_t>(kind)] : *prediction;
  }
};
ModelSizes model_sizes(const Setup& setup);

// By block number, and at the end for the head: whether its input needs no gradient, because nothing before it is trained. Checkpointing
// needs inputs that do (enable_input_require_grads), or it would cut the gradient off.
std::vector<char> frozen_inputs(const Setup& setup, const ModelSizes& sizes);

struct StageResult {
  std::int64_t allocated_peak = 0, reserved_peak = 0;
  Phase phase = Phase::kLoad;
  TermBytes terms{};
  std::int64_t phase_peaks[kPhases] = {};
  std::int64_t waiting_peak = 0;       // most that freed blocks held back at once (record_stream)
  bool ran_out = false;
  std::size_t events = 0;
};

struct ReplayOptions {
  std::int64_t allocator_limit = 0;    // bytes; 0 = none
  bool every_block = false;            // replay all blocks in full, not only the first and last few of equal ones
  std::vector<TracePoint>* trace = nullptr;
};

StageResult replay_rank(const Setup& setup, const ModelSizes& sizes, const StageLayout& layout, const ReplayOptions& options);

}  // namespace shardfit::memory
