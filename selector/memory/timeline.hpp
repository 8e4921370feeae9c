// Allocations and frees in program order, told apart by term and phase, on top of the allocator's replay.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "selector/memory/allocator.hpp"
#include "selector/memory/terms.hpp"

namespace shardfit::memory {

// The streams that allocate from pools of their own.
enum Stream : int { kCompute = 0, kGather = 1, kReduce = 2, kSecondGather = 3, kSwapStream = 4 };

struct TracePoint {
  std::string label;      // "block 31 backward"
  Phase phase = Phase::kLoad;
  int step = 1;
  std::int64_t allocated = 0, reserved = 0;
  TermBytes terms{};      // at the highest moment since the point before
  std::int64_t cached[CachingAllocator::kStreams] = {};  // free bytes in each stream's pools at the point itself
};

class Timeline {
 public:
  using Handle = std::int32_t;     // a reference-counted storage; -1 = none
  static constexpr Handle kNone = -1;

  explicit Timeline(const CachingAllocator::Options& options) : allocator_(options) {}

  Handle make(std::int64_t bytes, Term term, int stream = kCompute);  // one reference; kNone for 0 bytes
  Handle share(Handle h) {
    if (h >= 0) ++storages_[static_cast<std::size_t>(h)].references;
    return h;
  }
  void drop(Handle h);
  int references(Handle h) const { return h < 0 ? 0 : storages_[static_cast<std::size_t>(h)].references; }
  std::int64_t bytes(Handle h) const { return h < 0 ? 0 : allocator_.size(storages_[static_cast<std::size_t>(h)].block); }
  // Gathers and reductions are operators of a traced graph and allocate on its stream; with `private_pool` forward and backward are a
  // CUDA graph, whose tensors live in a pool apart from states and weights (kGather stands in for it).
  void run_as_graph(bool private_pool) {
    one_stream_ = true;
    private_pool_ = private_pool;
  }
  void retag(Handle h, Term term);  // what it is has changed (an activation gradient that becomes a gradient)
  // Frees of this stream wait until `count` later ones were made (record_stream: the CPU runs ahead of the event). They count as
  // free for `allocated`, not for the segments.
  void delay_frees(int stream, int count) { delay_[stream] = count; }

  // Storages that a communication stream has recorded (ProcessGroupNCCL before torch 2.8): when dropped they come back only once the
  // device has caught up, which the CPU may lead by `launches` kernels, the depth of CUDA's launch queue.
  void hold_recorded(int launches) { lead_ = launches; }
  void record(Handle h) {
    if (lead_ > 0 && h >= 0) storages_[static_cast<std::size_t>(h)].recorded = true;
  }
  void launch(int kernels) {
    if (lead_ > 0) advance(kernels);
  }
  void synchronize();               // the CPU waits for the device: whatever is held back returns

  void enter(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }
  void set_step(int step) { step_ = step; }

  std::int64_t allocated() const { return allocator_.allocated(); }
  std::int64_t allocated_peak() const { return peak_; }
  std::int64_t reserved_peak() const { return allocator_.reserved_peak(); }
  bool ran_out() const { return allocator_.ran_out(); }
  std::int64_t waiting_peak() const { return waiting_peak_; }
  Phase peak_phase() const { return peak_phase_; }
  const TermBytes& peak_terms() const { return peak_terms_; }
  std::int64_t phase_peak(Phase phase) const { return phase_peak_[static_cast<std::size_t>(phase)]; }
  std::size_t events() const { return events_; }

  void record_to(std::vector<TracePoint>* points) { trace_ = points; }
  bool tracing() const { return trace_ != nullptr; }
  void mark(const std::string& label);   // closes a trace point; cheap when nobody records

 private:
  struct Storage {
    CachingAllocator::Block block = -1;
    std::int32_t references = 0;
    Term term = Term::kParameters;
    std::int8_t stream = 0;
    bool recorded = false;
  };
  struct Held {
    CachingAllocator::Block block;
    std::int64_t until;             // launch count
  };
  void advance(int kernels);
  void note_peak();

  CachingAllocator allocator_;
  std::vector<Storage> storages_;
  std::vector<Handle> unused_;
  std::vector<CachingAllocator::Block> waiting_[CachingAllocator::kStreams];
  int delay_[CachingAllocator::kStreams] = {};
  std::vector<Held> held_;           // in order of release
  std::size_t held_first_ = 0;
  std::int64_t launches_ = 0, settled_all_ = 0;
  int lead_ = 0;
  bool one_stream_ = false, private_pool_ = false;
  std::int64_t waiting_bytes_ = 0, waiting_peak_ = 0;
  TermBytes live_{}, peak_terms_{};
  std::int64_t peak_ = 0;
  std::int64_t phase_peak_[kPhases] = {};
  Phase phase_ = Phase::kLoad, peak_phase_ = Phase::kLoad;
  int step_ = 1;
  std::size_t events_ = 0;
  std::vector<TracePoint>* trace_ = nullptr;
  std::int64_t segment_peak_ = -1;
  TermBytes segment_terms_{};
};

}  // namespace shardfit::memory
