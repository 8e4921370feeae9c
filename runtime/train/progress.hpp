// What a person watching the run sees: one line that is rewritten on a terminal, plain lines elsewhere. Rank 0 only.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace shardfit::train {

class Progress {
 public:
  Progress(bool shown, std::int64_t first_step, std::int64_t last_step, std::int64_t logging_steps);
  void step(std::int64_t step, double loss, double learning_rate, double grad_norm, double tokens_per_second);
  void note(const std::string& text);  // a line of its own
  ~Progress();

 private:
  const bool shown_, terminal_;
  const std::int64_t first_, last_, every_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool open_line_ = false;
};

}  // namespace shardfit::train
