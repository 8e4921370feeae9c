// One block (or the head with the loss) as autograd sees it: a list of operations over tensors, each with what it allocates, keeps
// for backward and gives back. Run forward and backward on a Timeline.
//
// Semantics are those of PyTorch autograd: an operation allocates temporaries and its result and keeps `saves` (storages, not
// tensors: a view keeps all of its base) until its backward, which allocates temporaries, the gradients of its inputs and of its
// weights, and then lets go of what it kept and of the gradient that came in.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "selector/memory/timeline.hpp"

namespace shardfit::memory {

template <class T, int N>
struct SmallList {                      // a few values in place; what is beyond N is an error of the op rules, not of input
  T values[N] = {};
  int count = 0;
  void push(T v) {
    if (count < N) values[count++] = v;
  }
  const T* begin() const { return values; }
  const T* end() const { return values + count; }
  bool empty() const { return count == 0; }
};

struct WeightGradient {
  int parameter = -1;                   // index into the block's parameters; -1 an adapter, -2 a fused weight
  std::int64_t bytes = 0;
};

inline constexpr std::int64_t kPass = -1;       // the input's gradient is the output's gradient itself
inline constexpr std::int64_t kNoGradient = -2;

struct TapeOp {
  const char* name = "";
  SmallList<int, 6> in;
  int out = -1;
  SmallList<int, 4> more_outs;          // views of a split: aliases of the input's storage
  SmallList<int, 8> saves;              // tensors kept until backward
  SmallList<std::int64_t, 12> extra;    // bytes of further kept tensors (masks, statistics)
  SmallList<std::int64_t, 6> gradients; // bytes a gradient of each input, kPass or kNoGradient
  SmallList<WeightGradient, 6> weights;
  std::int64_t forward_temporary = 0, backward_temporary = 0;
  bool needs_gradient = true;           // something before or in it is trained
  bool kept_by_policy = false;          // selective checkpointing keeps its output
  bool gradients_over_saves = false;    // the kernel writes its inputs' gradients over what it kept of them, in order
  bool collective = false;              // its tensors are recorded by a communication stream
  bool recomputed = false;              // its result is thrown away after use and made again in backward
  Term term = Term::kActivations;
};

// A module of the model's code that a block calls: the operations of its forward and the parameters it owns.
struct TapeModule {
  int first = 0, last = 0;              // operations [first, last); equal = none of its own
  std::vector<int> parameters;          // numbers of the block's parameters; beyond those: the adapter of the operator so many further on
  bool container = false;               // calls the modules after it that are inside
  bool inside = false;
};

class Tape {
 public:
  struct TensorInfo {
    std::int64_t bytes = 0;
    bool requires_gradient = true;
    int base = -1;                      // alias of that tensor's storage
    bool is_saved = false;              // by some operation (set by finish)
    int last_use = -1;                  // operation after which the forward lets go of it
    bool hold = false;                  // a local of the module's forward: lives until it returns
  };
  std::vector<TensorInfo> tensors;
  std::vector<TapeOp> ops;
  std::vector<TapeModule> modules;      // in the order of the forward
  int input = -1, output = -1;
  int last_saving_op = -1;              // an early-stopping recompute ends here
  std::vector<int> context;             // tensors that outlive their backward, in attributes of a custom autograd function
  std::vector<int> cached;              // keys and values that the model returns beside its result
  std::int64_t input_gradient = 0;      // bytes of what the backward returns (set by finish)
  int projection = -1;                  // of a head: the operation that makes the logits
  int model_output = -1;                // of a head: what the model returns and the training loop may hold

  int tensor(std::int64_t bytes, bool requires_gradient = true);
  int view(int of);                     // same storage
  int base(int t) const { return tensors[static_cast<std::size_t>(t)].base < 0 ? t : tensors[static_cast<std::size_t>(t)].base; }
  std::int64_t bytes(int t) const { return tensors[static_cast<std::size_t>(t)].bytes; }
  bool requires_gradient(int t) const { return tensors[static_cast<std::size_t>(t)].requires_gradient; }
  // Adds an operation. `gradients` empty = one of the input's own size each. Inputs without gradient get none.
  // Whatever is kept is dropped again when nothing needs a gradient.
  int add(TapeOp op, std::int64_t out_bytes);
  void finish(int input_tensor, int output_tensor);
  std::int64_t saved_bytes() const;     // kept between forward and backward, without the input

 private:
  std::int64_t gradient_of_input() const;
};

// What a forward left for its backward.
struct Saved {
  std::vector<std::vector<Timeline::Handle>> by_op;   // in order of the operations; one single list when `flat`
  bool flat = false;
};

// Told of each module of a tape that runs and of each weight's gradient: ZeRO gathers and reduces at these moments.
class ModuleWatcher {
 public:
  virtual ~ModuleWatcher() = default;
  virtual void enter(std::size_t module) = 0;
  virtual void leave(std::size_t module) = 0;
  // As soon as autograd has made it: true = the watcher lets go of it.
  virtual bool take(Timeline::Handle gradient) = 0;
};

class TapeRunner {
 public:
  explicit TapeRunner(Timeline& timeline) : timeline_(timeline) {}

  // A hook takes each weight's gradient as soon as autograd has made it, and lets go of it (ZeRO-2 and 3: copied into the bucket).
  bool gradients_leave = false;
  ModuleWatcher* watcher = nullptr;     // of the tape that runs next

  struct Forward {
    bool save = true;                   // keep what autograd keeps
    bool collect_policy = false;        // selective checkpointing: keep outputs that the policy names (into `kept`)
    std::vector<Timeline::Handle>* kept = nullptr;  // collect: filled; recompute: taken from, by tensor number
    int stop_after = -1;                // recompute: last operation that runs; -1 = all
    Term term = Term::kActivations;
    std::vector<Timeline::Handle>* cache = nullptr;          // filled with what Tape::cached names
    std::function<void(Timeline::Handle)> on_model_output;   // the model has returned it
  };
  // `x` stays the caller's; returns the output (kNone when stopped before it).
  Timeline::Handle forward(const Tape& tape, Timeline::Handle x, const Forward& how, Saved* saved);
  // Only what remains after the forward, without the operations' own transients (for blocks equal to ones replayed in full).
  Timeline::Handle forward_kept_only(const Tape& tape, Timeline::Handle x, const Forward& how, Saved* saved);
  // `gy` is consumed. Weight gradients are appended to `weights`. Returns the gradient of the input, or kNone.
  // `before_projection` runs when the backward leaves the loss and enters the model (Tape::projection).
  Timeline::Handle backward(const Tape& tape, Saved& saved, Timeline::Handle gy, std::vector<Timeline::Handle>& weights,
                            const std::function<void()>& before_projection = {});
  Timeline::Handle backward_kept_only(const Tape& tape, Saved& saved, Timeline::Handle gy, std::vector<Timeline::Handle>& weights);

 private:
  Timeline& timeline_;
  std::vector<Timeline::Handle> live_, grad_;
};

}  // namespace shardfit::memory
