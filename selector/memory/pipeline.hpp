// Which blocks a pipeline rank holds and which of its micro batches are in flight at its fullest moment.
#pragma once
#include <vector>

#include "selector/memory/rank_replay.hpp"

namespace shardfit::memory {

// One layout a stage, first to last; a single one without pipeline parallelism.
std::vector<StageLayout> pipeline_stages(const Setup& setup, std::int64_t blocks);

// A part of the model that a rank holds: chunk c of rank r is number c * ranks + r.
struct Chunk {
  std::int64_t blocks = 0, predictions = 0;   // predictions: blocks of multi-token prediction
};

// Megatron's split into chunks (pipeline_megatron.cpp): layout string, uneven first and last stages, embedding and loss that count
// as blocks. Throws Error where Megatron refuses.
std::vector<Chunk> megatron_chunks(const Setup& setup, std::int64_t blocks);

// Chunks whose activations are alive when one of them is run backward.
struct InFlight {
  std::int64_t backward = 0;                  // the chunk (0 .. chunks of the rank - 1)
  std::vector<std::int64_t> alive;            // micro batches of each chunk, without the one that is run backward
};

// The fullest moment of rank `rank` by Megatron's interleaved schedule (schedules.py: get_pp_rank_microbatches, get_schedule_table),
// `weights` being the blocks of each of its chunks. overlap_moe_expert_parallel_comm starts one forward more before the first backward,
// but runs it layer by layer beside that backward: as much is alive.
InFlight interleaved_in_flight(std::int64_t ranks, std::int64_t rank, std::int64_t micro_batches, const std::vector<std::int64_t>& weights);

}  // namespace shardfit::memory
