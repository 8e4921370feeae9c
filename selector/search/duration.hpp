// How many optimizer steps a job's duration means.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "selector/job/job.hpp"

namespace shardfit::search {

// A job's duration before the batch is known.
struct Duration {
  double tokens = 0;                 // > 0: steps = ceil(tokens / (global batch x sequence length))
  std::int64_t steps = 0;            // > 0: stated outright
  std::vector<std::string> assumed;  // "duration=1000 steps (not stated)", "data.tokens=... (files' bytes / 4)"

  std::int64_t steps_for(std::int64_t global_batch_sequences, std::int64_t sequence_length) const;
};

// Epochs are counted over data.tokens, else over the files: exact for the format "tokens", about 4 bytes a token for
// text and jsonl (said under assumed). Without a duration 1000 steps are priced, which leaves the ranking of offers a
// question of speed and price. Throws Error where the data of an epoch cannot be found.
Duration duration_of(const job::Job& job);

}  // namespace shardfit::search
