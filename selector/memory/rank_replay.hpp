// The replay of one rank: load, two optimizer steps with their micro batches, every block's forward and backward, the update.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "selector/memory/op_rules.hpp"
#include "selector/memory/setup.hpp"
#include "selector/memory/sharder.hpp"
#include "selector/memory/timeline.hpp"
#include "selector/memory/unit_sizes.hpp"

namespace shardfit::memory {

// Sizes of all units of a model on one rank, worked out once and shared by the stages.
struct ModelSizes {
  std::vector<UnitSizes> blocks;       // by index into Model::blocks
  UnitSizes embedding, head;
  std::vector<int> order;              // index into Model::blocks of each block, encoder first
  std::int64_t encoder_blocks = 0;
};
ModelSizes model_sizes(const Setup& setup);

struct StageLayout {
  std::vector<std::int64_t> blocks;    // numbers of the blocks on this rank
  std::vector<std::int64_t> active;    // those of the chunk that is replayed (pipelines); empty = all
  bool first = true, last = true;
  std::int64_t predictions = 0;        // blocks of multi-token prediction among them, each with a loss of its own
  std::int64_t held = 0;               // further micro batches whose activations are alive
};

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
