// Which parameters ZeRO-3 gathers, fetches ahead and lets go of at each call of a module: the coordinator of DeepSpeed
// (deepspeed/runtime/zero/partitioned_param_coordinator.py) run over the trace of one micro step.
//
// The first micro step of a run records the trace: each module gathers its own parameters when it is called and lets go of them when
// it returns. From the second on, a call gathers what is missing, then takes parameters from the queue of the trace up to
// prefetch elements, as long as fewer than max_live are gathered, and on return keeps what the trace uses again within max_reuse.
#pragma once
#include <cstdint>
#include <vector>

namespace shardfit::memory {

struct TraceParameter {
  std::int64_t elements = 0;   // whole
  double bytes = 2;            // an element, gathered
  bool persists = false;       // stays gathered between steps (stage3_param_persistence_threshold)
  bool trained = true;
  bool linear = false;         // the weight of a linear layer
  bool swapped = false;        // this rank's part lies on NVMe and comes through a swap buffer
  bool quantized = false;      // kept and gathered in 8 bit (zero_quantized_nontrainable_weights)
};

struct TraceLimits {
  double prefetch = 0, max_live = 0, max_reuse = 0;  // elements
  double swap_buffers = 0;                           // each gathered tensor that is swapped holds one
};

class ZeroTrace {
 public:
  using Ids = std::vector<std::int32_t>;
  struct Span {
    const std::int32_t* first = nullptr;
    const std::int32_t* last = nullptr;
    const std::int32_t* begin() const { return first; }
    const std::int32_t* end() const { return last; }
    std::size_t size() const { return static_cast<std::size_t>(last - first); }
  };

  std::vector<TraceParameter> parameters;

  // An entry is a call and its return, or, where other calls lie between, one of the two. Appends it and returns its number. The
  // numbers in `ids` are those of `parameters`; none for a container.
  enum class Entry : std::uint8_t { kCall, kCallOnly, kReturnOnly };
  std::int32_t add(const Ids& ids, Entry entry = Entry::kCall) { return add(ids, ids, entry); }
  std::int32_t add(const Ids& called, const Ids& returned, Entry entry);
  std::int32_t size() const { return static_cast<std::int32_t>(entries_.size()); }
  bool is_call(std::int32_t entry) const { return entries_[static_cast<std::size_t>(entry)] != Entry::kReturnOnly; }

  // A micro step worked out. At entry e, in order: gathers own(e) as one, waits for all of needs(e), gathers ahead(e) as one; on return
  // lets go of released(e).
  struct Plan {
    Ids own_ids, ahead_ids, released_ids;
    Ids own_begin, ahead_begin, released_begin;   // by entry, one more at the end
    std::vector<double> live;                     // elements gathered after each call's fetch, where the limits count them
    double left = 0;                              // elements gathered at the end, what persists among them
    Span own(std::int32_t e) const { return span(own_ids, own_begin, e); }
    Span ahead(std::int32_t e) const { return span(ahead_ids, ahead_begin, e); }
    Span released(std::int32_t e) const { return span(released_ids, released_begin, e); }
  };
  Span needs(std::int32_t entry) const { return span(called_, called_begin_, entry); }
  Plan first_step() const;
  // `start`: what is gathered when the micro step begins, by parameter; empty: what persists. `live`: elements it counts as gathered then.
  Plan recorded(const TraceLimits& limits, bool with_live = false, const std::vector<char>& start = {}, double live = 0) const;

 private:
  static Span span(const Ids& values, const Ids& begin, std::int32_t entry) {
    const auto e = static_cast<std::size_t>(entry);
    return {values.data() + begin[e], values.data() + begin[e + 1]};
  }
  Span returned(std::int32_t entry) const { return span(returned_, returned_begin_, entry); }

  std::vector<Entry> entries_;
  Ids called_, returned_;               // parameters of all calls and of all returns, one after the other
  Ids called_begin_ = {0}, returned_begin_ = {0};
};

}  // namespace shardfit::memory
