// The trace of a model's micro step under ZeRO-3: every module of every block in the order in which DeepSpeed's hooks see them
// (deepspeed/runtime/zero/parameter_offload.py), and where in it each module of a tape stands.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "selector/memory/sharder.hpp"
#include "selector/memory/zero_trace.hpp"

namespace shardfit::memory {

class ZeroCalls {
 public:
  ZeroCalls(const Setup& setup, const ModelWalk& walk);

  const ZeroTrace& trace() const { return trace_; }

  // Of many equal blocks those in the middle, which the limits reach from neither end, are left out of the trace: from one to the next
  // the same parameters come and go.
  bool traced(std::size_t block) const { return block == Sharder::kHead || traced_[block] != 0; }

  // Marks: 2 e is the fetch of entry e, 2 e + 1 its release. Where a module's are; `end` is the first mark after the pass.
  struct Marks {
    std::int32_t fetch = -1, release = -1;
  };
  Marks of(std::size_t block, Pass pass, std::size_t module) const;
  std::int32_t end(std::size_t block, Pass pass) const;
  Marks embedding(bool backward) const { return embedding_[backward ? 1 : 0]; }

  // The blocks in whose forward and backward most elements are gathered; `live` by call, of the recorded plan.
  std::vector<std::size_t> fullest_blocks(const std::vector<double>& live) const;

  // parameter_offload.py of 0.16.0 to 0.16.7 (since #6726, until #7258) counts ds_grads_remaining up in the forward and again in its
  // recomputation, but down only once: within a checkpoint that is not re-entrant the hook behind a module's backward never fires, and
  // what it gathered stays to the step.
  bool keeps_recomputed() const { return !s_.reentrant && counts_twice(s_); }
  // _fetch_sub_module_impl (since #8148) books the frozen parameters of a recomputation on the module whose backward runs. A re-entrant
  // checkpoint recomputes between modules: that is the whole model then, and they stay to the end of its backward.
  bool keeps_frozen() const { return s_.reentrant && s_.zero.release >= 1903; }
  static bool counts_twice(const Setup& s) { return s.zero.release >= 1600 && s.zero.release < 1608; }

  double untraced_persistent() const { return untraced_persistent_; }   // elements of blocks left out
  double untraced() const { return untraced_; }

 private:
  struct Place {
    std::vector<Marks> modules;         // relative to the start of the pass
    std::int32_t end = 0;
  };
  struct Layout {                       // of equal blocks
    Place pass[3];
    bool is_leaf = false;
  };

  void choose_blocks();
  std::int32_t add_kept(const ZeroTrace::Ids& ids, ZeroTrace::Entry entry);
  bool is_leaf(const ModelWalk::Step& step) const;
  std::int32_t number(const model::Block& block, const UnitSizes& sizes);
  const ZeroTrace::Ids& ids_of(const TapeModule& module, std::int32_t base);
  void add_forward(const ModelWalk::Step& step, std::int32_t base, Place* place);
  void add_backward(const ModelWalk::Step& step, std::int32_t base, Layout* layout);
  void add_head(bool backward);

  const Setup& s_;
  const ModelWalk& walk_;
  ZeroTrace trace_;
  std::vector<char> traced_;
  std::map<std::pair<int, bool>, Layout> layouts_;   // by kind and whether it is recomputed
  std::vector<const Layout*> layout_;                // by block
  std::vector<std::int32_t> start_[3];               // first mark of a pass, by block
  Place head_[2];
  std::int32_t head_start_[2] = {-1, -1}, embedding_base_ = 0, head_base_ = 0;
  Marks embedding_[2];
  double in_memory_ = 0;                             // elements of this rank's parts that max_in_cpu has taken in
  double persistent_ = 0, untraced_persistent_ = 0, untraced_ = 0;
  ZeroTrace::Ids ids_, trained_;
};

}  // namespace shardfit::memory
