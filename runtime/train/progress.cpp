#include "runtime/train/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "regions/base/text.hpp"

namespace shardfit::train {

Progress::Progress(bool shown, std::int64_t first_step, std::int64_t last_step, std::int64_t logging_steps)
    : shown_(shown),
      terminal_(::isatty(STDERR_FILENO) == 1),
      first_(first_step),
      last_(last_step),
      every_(std::max<std::int64_t>(logging_steps, 1)) {}

Progress::~Progress() {
  if (open_line_) std::fputc('\n', stderr);
}

void Progress::step(std::int64_t step, double loss, double learning_rate, double grad_norm, double tokens_per_second) {
  if (!shown_ || (!terminal_ && step % every_ != 0 && step != last_)) return;
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto done = step - first_ + 1;
  const double left = done > 0 ? elapsed / static_cast<double>(done) * static_cast<double>(last_ - step) : 0;
  const auto line = fmt::format("step {}/{}  loss {:.4f}  lr {:.3g}  grad norm {:.3g}  {:.0f} tokens/s  {} left", step,
                                last_, loss, learning_rate, grad_norm, tokens_per_second, format_duration(left));
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    open_line_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

void Progress::note(const std::string& text) {
  if (!shown_) return;
  std::fprintf(stderr, "%s%s\n", open_line_ ? "\n" : "", text.c_str());
  open_line_ = false;
  std::fflush(stderr);
}

}  // namespace shardfit::train
