// Runs one program with a deadline and collects what it writes. The program gets `input` as its standard input and its
// own process group; at the deadline the whole group is killed.
#pragma once
#include <string>
#include <vector>

namespace shardfit::spank {

struct ChildResult {
  enum class End { kExited, kSignalled, kTimedOut, kNotStarted } end = End::kNotStarted;
  int status = 0;           // exit status, signal, or errno of the failed start
  std::string out, err;     // at most `output_limit` bytes each
  bool output_cut = false;  // it wrote more than that
};

inline constexpr std::size_t kChildOutputLimit = std::size_t{1} << 20;

// At most this much may be handed over as input: it is written before the program starts.
inline constexpr std::size_t kChildInputLimit = 4096;

// arguments[0] is the program's path. `environment`: "NAME=value" entries added to (or replacing) the caller's own.
ChildResult run_child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                      double deadline_seconds, const std::string& input = {},
                      std::size_t output_limit = kChildOutputLimit);

}  // namespace shardfit::spank
