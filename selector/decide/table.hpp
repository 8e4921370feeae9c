// A decision as people read it in a terminal; `shardfit plan` and `sbatch --hw=show` print the same.
#pragma once
#include <string>

#include "selector/decide/decision.hpp"

namespace shardfit::decide {

// Several lines, each ended by a newline: the choice with its plan in words, memory, step, hours and cost, the
// runner-up, further candidates, rejected offers with their rules, and what would flip the decision.
std::string table(const Decision& decision, const job::Job& job);
// One line: "verda-fin03-8xh100: 1 node x 8 h100_sxm_80gb, ZeRO-3, ... 12.3 h, 225 EUR".
std::string one_line(const Decision& decision);
// The plan in words: "1 x 8 h100_sxm_80gb, stage 3 over 8, micro batch 2 x 4, full checkpointing, optimizer on CPU".
std::string plan_words(const job::Plan& plan);

}  // namespace shardfit::decide
