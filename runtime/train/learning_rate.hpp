// The learning rate of each step.
#pragma once
#include <cstdint>

namespace shardfit::job {
struct Train;
}

namespace shardfit::train {

// Step counts from 1. learning_rate x min(1, step / warmup_steps) x schedule, where the schedule runs from 1 at the
// first step after the warm-up to min_lr_ratio after the last step: cosine, linear, constant (no end), wsd (constant,
// then linear over the last tenth).
double learning_rate_at(const job::Train& train, std::int64_t step, std::int64_t total_steps);

}  // namespace shardfit::train
