#include "runtime/train/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "selector/job/job.hpp"

namespace shardfit::train {

double learning_rate_at(const job::Train& train, std::int64_t step, std::int64_t total_steps) {
  const auto warmup = train.warmup_steps;
  const double rise = warmup > 0 ? std::min(1.0, static_cast<double>(step) / static_cast<double>(warmup)) : 1.0;
  const auto first = std::min(warmup, total_steps);
  auto progress_from = [&](std::int64_t start) {
    if (total_steps <= start) return 0.0;
    return std::clamp(static_cast<double>(step - 1 - start) / static_cast<double>(total_steps - start), 0.0, 1.0);
  };
  double factor = 1;
  if (train.lr_scheduler_type == "cosine") {
    factor =
        train.min_lr_ratio + (1 - train.min_lr_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * progress_from(first)));
  } else if (train.lr_scheduler_type == "linear") {
    factor = 1 - (1 - train.min_lr_ratio) * progress_from(first);
  } else if (train.lr_scheduler_type == "wsd") {
    factor = 1 - (1 - train.min_lr_ratio) *
                     progress_from(std::max(first, total_steps - std::max<std::int64_t>(total_steps / 10, 1)));
  }
  return train.learning_rate * rise * factor;
}

}  // namespace shardfit::train
