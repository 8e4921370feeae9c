// When a framework gathers and releases parameters, and what it does with gradients: one class a way of working.
#pragma once
#include <memory>
#include <vector>

#include "selector/memory/setup.hpp"
#include "selector/memory/tape.hpp"
#include "selector/memory/timeline.hpp"
#include "selector/memory/unit_sizes.hpp"

namespace shardfit::memory {

// A unit that is gathered and reduced as one: one or more blocks, or a part of the root.
struct GatherUnit {
  std::int64_t gather_bytes = 0;      // whole, in compute format
  std::int64_t elements = 0;          // whole
  std::int64_t trained = 0;           // elements that get a gradient, whole
  std::int64_t trained_shard = 0;     // elements of them on this rank
  std::int64_t adapters = 0;
  std::int64_t largest_leaf = 0;      // elements of the largest single tensor
  void add(const UnitSizes& u);
};

// The model as a rank walks through it, in the order of the forward; what ZeRO traces.
struct ModelWalk {
  struct Step {
    const Tape* tape = nullptr;
    const model::Block* block = nullptr;
    const UnitSizes* sizes = nullptr;
    int kind = 0;                     // equal blocks have the same number
    bool recomputed = false;          // its forward runs again in backward
    bool replayed = false;            // its operations are replayed, not only what they leave
  };
  std::vector<Step> blocks;
  const UnitSizes* embedding = nullptr;   // null on a rank that has none
  const UnitSizes* head = nullptr;
  const Tape* head_tape = nullptr;
};

enum class Pass : std::uint8_t { kForward, kRecompute, kBackward };

class Sharder {
 public:
  static constexpr std::size_t kHead = ~std::size_t{0};   // in place of a block's number
  using Handles = std::vector<Timeline::Handle>;

  Sharder(const Setup& setup, Timeline& timeline) : s_(setup), t_(timeline) {}
  virtual ~Sharder() = default;

  // Buffers that live as long as the run. `all` = everything on this rank.
  virtual void allocate_fixed(const GatherUnit& all) { (void)all; }
  virtual void before_forward(std::size_t unit) { (void)unit; }
  virtual void after_forward(std::size_t unit) { (void)unit; }
  virtual void before_backward(std::size_t unit) { (void)unit; }
  // The same where the gather ahead is told to be another than that of the unit before.
  virtual void before_backward(std::size_t unit, std::size_t ahead) {
    (void)ahead;
    before_backward(unit);
  }
  // Takes the gradients that autograd made for the unit.
  virtual void after_backward(std::size_t unit, Handles& weights) = 0;
  // Root parts: key 0 embedding, 1 head; when they are one unit only `root_*` with key 2 is used.
  virtual void gather_root(int key, const GatherUnit& unit, bool in_backward = false) { (void)key, (void)unit, (void)in_backward; }
  virtual void release_root(int key) { (void)key; }
  virtual void reduce_root(int key, const GatherUnit& unit, Handles& weights) = 0;
  // Engines that follow modules rather than units. A replayed pass is followed by the watcher (null = nobody follows it); for a pass
  // whose operations are not replayed `pass_by` stands for all of its modules.
  virtual void prepare(const ModelWalk& walk) { (void)walk; }
  virtual std::vector<std::size_t> fullest_blocks() const { return {}; }   // where most is gathered: worth replaying in full
  virtual void begin_micro_step(bool last) { (void)last; }    // last: the optimizer steps after it
  virtual void begin_backward() {}
  virtual bool takes_gradients() const { return false; }      // of the backward that follows, one by one as they are made
  virtual ModuleWatcher* watch(std::size_t block, Pass pass) {
    (void)block, (void)pass;
    return nullptr;
  }
  virtual void pass_by(std::size_t block, Pass pass) { (void)block, (void)pass; }
  virtual void begin_embedding_backward() {}
  // Before the optimizer: the gradient's norm, its copy in the format of the update. What is returned lives through the update.
  virtual Handles before_update() { return {}; }
  virtual void after_update() {}
  virtual void end_forward() {}       // the root module has returned
  virtual void end_backward() {}
  virtual void zero_gradients();

  std::vector<GatherUnit> units;      // blocks of this rank, in order

 protected:
  void keep(std::size_t key, Handles& weights);                 // unsharded: they stay until the step
  static constexpr std::size_t kRoot = 1u << 20;

  struct Kept {
    std::size_t key;
    Timeline::Handle handle;
  };
  bool has(std::size_t key) const;
  void put(std::size_t key, Timeline::Handle h) { gradients_.push_back({key, h}); }
  void drop_all(Handles& weights);

  const Setup& s_;
  Timeline& t_;
  std::vector<Kept> gradients_;       // of this step
};

std::unique_ptr<Sharder> make_sharder(const Setup& setup, Timeline& timeline);

}  // namespace shardfit::memory
