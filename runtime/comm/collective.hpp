// What ranks do together. One interface, three roads: shared memory (shm.hpp), Gloo (gloo/), NCCL (nccl/); and none,
// for one rank.
//
// All ranks call the same operations in the same order. Every wait ends: with the data, with Error{rank_lost} (exit
// status 10, names the rank) when a rank has died or the deadline has passed, or with Error{ranks_out_of_step} (exit
// status 11) when ranks call different operations. Sums are taken in the order of the ranks, in fp32, so that every run
// of the same ranks gives the same bits.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace shardfit::comm {

inline constexpr int kExitRankLost = 10;
inline constexpr int kExitOutOfStep = 11;

enum class Type { kFp32, kBf16, kByte };
std::int64_t width_of(Type type);

enum class Op { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier };
std::string_view name_of(Op op);

class Collective {
 public:
  Collective(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  virtual std::string_view backend() const = 0;
  virtual std::int64_t buffer_bytes() const { return 0; }  // staging memory that this rank holds or maps

  // out = every rank's `elements` one after another; `in` may be this rank's own place in `out`.
  void all_gather(const void* in, void* out, std::int64_t elements, Type type);
  // `in` holds ranks x elements; out = the sum over the ranks of this rank's part.
  void reduce_scatter(const void* in, Type in_type, void* out, Type out_type, std::int64_t elements);
  void all_reduce(void* data, std::int64_t elements, Type type);
  void broadcast(void* data, std::int64_t bytes, int root);
  void barrier();

  // Small numbers of the host, whatever device the buffers above are on.
  double sum(double value);  // in the order of the ranks
  double largest(double value);
  virtual void exchange(const void* in, void* out,
                        std::int64_t bytes) = 0;  // host memory: out = every rank's bytes in order

  void set_step(std::int64_t step) { step_ = step; }
  // Writes {"rank","collectives":[{seq, op, bytes, group, step, state}]}, the last 64, to FOLDER/rank-<n>.json; never
  // throws.
  void dump(const std::filesystem::path& folder, const std::string& why) const noexcept;

 protected:
  virtual void do_all_gather(const void* in, void* out, std::int64_t elements, Type type) = 0;
  virtual void do_reduce_scatter(const void* in, Type in_type, void* out, Type out_type, std::int64_t elements) = 0;
  virtual void do_all_reduce(void* data, std::int64_t elements, Type type) = 0;
  virtual void do_broadcast(void* data, std::int64_t bytes, int root) = 0;
  virtual void do_barrier() = 0;

 private:
  struct Record {
    std::int64_t seq = 0, bytes = 0, step = 0;
    Op op = Op::kBarrier;
    bool done = false;
  };
  class Entry;
  const int rank_, ranks_;
  std::int64_t step_ = 0, seq_ = 0;
  std::array<Record, 64> history_{};
};

// For a run of one rank.
std::unique_ptr<Collective> make_single();

// out[i] = sum over the parts, in order, accumulated in fp32. Used by the host roads.
void add_in_order(const void* const* parts, int count, Type in_type, void* out, Type out_type, std::int64_t elements);

}  // namespace shardfit::comm
