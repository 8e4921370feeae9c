// The ranks of a run find each other and watch each other: a TCP connection from every rank to rank 0, which stays open
// until the end.
//
// Joining compares what all ranks must agree on (a hash of job and plan). Afterwards a thread listens: a connection
// that closes without a farewell is a dead rank, and rank 0 tells the others which. Whoever waits for a collective
// looks at failure() meanwhile.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit {
struct Error;
}

namespace shardfit::comm {

struct WorldOptions {
  int rank = 0, ranks = 1;
  std::string address = "127.0.0.1";  // rank 0's host
  int port = 0;
  std::string agreement;  // must be equal on all ranks
  double timeout_seconds = 600;
  int listening_socket = -1;  // rank 0: a socket that listens already (the launcher made it), or -1
};

class World {
 public:
  // Blocks until all ranks are there. Throws Error{rank_lost, exit 10} naming the ranks that did not come in time,
  // Error{ranks_out_of_step, exit 11} on all ranks if `agreement` differs.
  explicit World(const WorldOptions& options);
  ~World();  // says farewell
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int ranks() const;
  double timeout_seconds() const;
  bool one_host() const;   // all ranks share this host's memory
  int local_rank() const;  // place among the ranks of this host
  int local_ranks() const;
  const std::string& address() const;

  // Rank 0's text, on every rank. In the same order on all ranks.
  std::string share(const std::string& text);

  // Tells the others why this rank ends, so that they name the cause rather than a lost connection. Never throws.
  void announce_failure(const std::string& message, int exit_status) noexcept;
  // Throws Error{rank_lost} if a rank has died or announced a failure.
  void check() const;
  bool failed() const noexcept;
  // Waits up to `seconds` for news of a failure and throws it; else throws Error{rank_lost} with `fallback`.
  [[noreturn]] void fail(const std::string& fallback, double seconds = 5) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// A socket that listens on 127.0.0.1, on a free port; returns {descriptor, port}. For a launcher, before its ranks
// start.
struct Listening {
  int descriptor = -1, port = 0;
};
Listening listen_on_loopback();

// SHARDFIT_TIMEOUT, else 600. Throws Error{out_of_range}.
double timeout_from_environment();

}  // namespace shardfit::comm
