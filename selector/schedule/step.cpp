#include "selector/schedule/step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/supported.hpp"

namespace shardfit::schedule {
namespace {

using job::DType;

// Bytes that 64-bit sums of a whole run may reach; beyond, sizes are refused rather than wrapped.
constexpr double kMostBytes = 4.0e18;

std::int64_t largest_block(const Step& step) {
  std::int64_t most = 0;
  for (std::size_t i = 1; i < step.units.size(); ++i) most = std::max(most, step.units[i].elements);
  return most;
}

class Builder {
 public:
  Builder(Step& step, const job::Plan& plan) : step_(step), plan_(plan) {}

  void run() {
    choose_slots();
    choose_saved_sets();
    forward();
    add({EventKind::kLoss, 0, root_slot()});
    backward();
    update();
  }

 private:
  int blocks() const { return static_cast<int>(step_.units.size()) - 1; }
  int root_slot() const { return step_.sharded ? 0 : -1; }
  std::int64_t unit_bytes(int unit, DType type) const {
    return step_.units[static_cast<std::size_t>(unit)].elements * width_of(type);
  }
  void add(Event event) { step_.micro.push_back(event); }

  void choose_slots() {
    if (!step_.sharded) return;
    using Reshard = job::Sharding::Reshard;
    keep_all_ = plan_.sharding.reshard_after_forward == Reshard::kFalse;
    keep_last_ = plan_.sharding.reshard_after_forward == Reshard::kTrue;
    ahead_ = static_cast<int>(
        std::clamp<std::int64_t>(plan_.schedule.prefetch_blocks.value_or(0), 0, std::max(blocks() - 1, 0)));
    step_.slots = 1 + (keep_all_ ? blocks() : std::min(ahead_ + 1, blocks()));
    slot_of_.assign(static_cast<std::size_t>(blocks()), -1);
    for (int slot = step_.slots - 1; slot >= 1; --slot) free_.push_back(slot);
  }

  void choose_saved_sets() {
    int next = 0, shared = -1;
    for (int block = 0; block < blocks(); ++block) {
      if (step_.checkpointed[static_cast<std::size_t>(block)]) {
        if (shared < 0) shared = next++;
        saved_.push_back(shared);
      } else {
        saved_.push_back(next++);
      }
    }
    step_.saved_sets = next;
  }

  int slot(int block) const { return step_.sharded ? slot_of_[static_cast<std::size_t>(block)] : -1; }

  void gather(int block) {
    if (!step_.sharded || block < 0 || block >= blocks() || slot(block) >= 0) return;
    auto& slot = slot_of_[static_cast<std::size_t>(block)];
    slot = free_.back();
    free_.pop_back();
    add({EventKind::kGather, block + 1, slot, -1, unit_bytes(block + 1, step_.sizes.precision.compute)});
  }
  void release(int block) {
    if (!step_.sharded) return;
    auto& slot = slot_of_[static_cast<std::size_t>(block)];
    add({EventKind::kRelease, block + 1, slot});
    free_.push_back(slot);
    slot = -1;
  }
  // Gathers `block` and, where buffers are free, those that come after it on the way (direction +1 or -1).
  void gather_ahead(int block, int direction) {
    gather(block);
    for (int i = 1; i <= ahead_ && !free_.empty(); ++i) gather(block + direction * i);
  }

  void forward() {
    if (step_.sharded) add({EventKind::kGather, 0, 0, -1, unit_bytes(0, step_.sizes.precision.compute)});
    add({EventKind::kEmbed, 0, root_slot()});
    for (int block = 0; block < blocks(); ++block) {
      gather_ahead(block, +1);
      add({EventKind::kForward, block + 1, slot(block), saved_[static_cast<std::size_t>(block)]});
      const bool last = block + 1 == blocks();
      if (!keep_all_ && !(last && keep_last_)) release(block);
    }
  }

  void reduce(int unit) {
    if (step_.ranks == 1) return;
    const auto type = step_.sizes.precision.gradients;
    add({EventKind::kReduce, unit, -1, -1, unit_bytes(unit, type), !step_.sharded});
  }

  void backward() {
    for (int block = blocks() - 1; block >= 0; --block) {
      gather_ahead(block, -1);
      const int saved = saved_[static_cast<std::size_t>(block)];
      // The last block's forward has just filled the shared set: nothing to do again.
      if (step_.checkpointed[static_cast<std::size_t>(block)] && block + 1 != blocks())
        add({EventKind::kRecompute, block + 1, slot(block), saved});
      add({EventKind::kBackward, block + 1, slot(block), saved});
      release(block);
      reduce(block + 1);
    }
    add({EventKind::kEmbedBackward, 0, root_slot()});
    if (step_.sharded) add({EventKind::kRelease, 0, 0});
    reduce(0);
  }

  void update() {
    step_.update.push_back({EventKind::kClip, 0, -1, -1, step_.ranks > 1 ? 8 : 0});
    const auto& precision = step_.sizes.precision;
    // Parameters and both states are read and written, gradients read.
    std::int64_t touched =
        2 * width_of(precision.parameters) + 4 * width_of(precision.states) + width_of(precision.gradients);
    if (!step_.sharded && precision.compute != precision.parameters) touched += width_of(precision.compute);
    for (int unit = 0; unit <= blocks(); ++unit)
      step_.update.push_back({EventKind::kOptimizer, unit, -1, -1,
                              step_.held_elements(step_.units[static_cast<std::size_t>(unit)]) * touched});
  }

  Step& step_;
  const job::Plan& plan_;
  bool keep_all_ = false, keep_last_ = false;
  int ahead_ = 0;
  std::vector<int> slot_of_, free_, saved_;
};

void list_buffers(Step& step) {
  const auto& sizes = step.sizes;
  const auto& precision = sizes.precision;
  const auto n = sizes.tokens(), hidden = sizes.geometry.hidden, compute = width_of(precision.compute);
  const auto held = step.held_elements();
  auto add = [&](std::string name, std::string what, std::int64_t bytes) {
    step.buffers.push_back({std::move(name), std::move(what), (bytes + 63) / 64 * 64});
  };
  add("parameters", "parameters", held * width_of(precision.parameters));
  add("exp_avg", "optimizer states", held * width_of(precision.states));
  add("exp_avg_sq", "optimizer states", held * width_of(precision.states));
  add("gradients", "gradients", held * width_of(precision.gradients));
  const bool own_compute_copy = precision.compute != precision.parameters;
  if (step.sharded) {
    add("gathered 0", "gathered parameters", step.units[0].elements * compute);
    for (int slot = 1; slot < step.slots; ++slot)
      add(fmt::format("gathered {}", slot), "gathered parameters", largest_block(step) * compute);
  } else if (own_compute_copy) {
    add("compute parameters", "parameters in the compute format", held * compute);
  }
  // Fresh gradients of the unit in work, before they are reduced or added: not needed where backward adds to
  // "gradients" itself. The root unit's are added up over many chunks of the loss: in the wider format from the start.
  if (step.sharded)
    add("root gradients", "gradients of units in work", step.units[0].elements * width_of(precision.gradients));
  if (step.sharded || precision.gradients != precision.compute)
    add("block gradients", "gradients of units in work", largest_block(step) * compute);
  if (step.sharded && step.micro_steps > 1) {
    std::int64_t most = 0;
    for (const auto& unit : step.units) most = std::max(most, unit.shard_elements);
    add("reduced", "gradients of units in work", most * width_of(precision.gradients));
  }
  const auto saved = saved_layout(sizes);
  add("stream", "activations", (sizes.geometry.layers + 1) * n * hidden * compute);
  for (int set = 0; set < step.saved_sets; ++set) add(fmt::format("saved {}", set), "activations", saved.bytes);
  add("d_stream", "activations", n * hidden * compute);
  add("scratch", "scratch",
      std::max({forward_layout(sizes).bytes, backward_layout(sizes).bytes, loss_layout(sizes).bytes}));
  add("batch", "batch", n * 3 * 4);
  if (sizes.geometry.architecture == Architecture::kLlama)
    add("rope", "rope tables", sizes.sequence * sizes.geometry.head_dim * 4);
  if (step.ranks > 1) add("communication", "communication", communication_bytes(step.ranks));
}

}  // namespace

std::int64_t communication_bytes(std::int64_t ranks) { return ranks * (4096 + 2 * kCommStageBytes); }

std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::kGather: return "gather";
    case EventKind::kRelease: return "release";
    case EventKind::kEmbed: return "embed";
    case EventKind::kForward: return "forward";
    case EventKind::kLoss: return "loss";
    case EventKind::kRecompute: return "recompute";
    case EventKind::kBackward: return "backward";
    case EventKind::kEmbedBackward: return "embed_backward";
    case EventKind::kReduce: return "reduce";
    case EventKind::kClip: return "clip";
    case EventKind::kOptimizer: return "optimizer";
  }
  return "?";
}

const Buffer& Step::buffer(std::string_view name) const {
  for (const auto& buffer : buffers)
    if (buffer.name == name) return buffer;
  throw std::logic_error("no buffer named " + std::string(name));
}

bool Step::has_buffer(std::string_view name) const {
  return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) { return buffer.name == name; });
}

std::int64_t Step::buffer_bytes() const {
  std::int64_t sum = 0;
  for (const auto& buffer : buffers) sum += buffer.bytes;
  return sum;
}

std::int64_t Step::held_elements() const {
  std::int64_t sum = 0;
  for (const auto& unit : units) sum += held_elements(unit);
  return sum;
}

Step build_step(const model::Model& model, const job::Job& job, const job::Plan& plan) {
  check_supported(job, plan, &model);
  Step step;
  step.ranks = plan.data_parallel();
  step.sharded = plan.sharding.stage == 3 && step.ranks > 1;
  step.micro_steps = plan.gradient_accumulation;
  step.sizes = sizes_of(model, job, plan);
  const auto& g = step.sizes.geometry;
  // The widest things a token carries through all layers, in doubles: whatever passes here keeps every sum below 2^63.
  const double widest = static_cast<double>(step.sizes.micro_batch) * static_cast<double>(step.sizes.sequence) *
                        (static_cast<double>(g.intermediate) * 8 + static_cast<double>(g.query_width()) * 16 +
                         static_cast<double>(g.hidden) * 16) *
                        static_cast<double>(g.layers + 2) * 4;
  if (!(widest < kMostBytes))
    throw Error("out_of_range", "/plan/micro_batch",
                fmt::format("micro_batch {} of {} tokens needs over 2^62 bytes", plan.micro_batch, step.sizes.sequence),
                "use a smaller micro batch or sequence");
  step.units = build_units(model, step.ranks);
  for (std::int64_t block = 0; block < g.layers; ++block)
    step.checkpointed.push_back(plan.checkpointing.kind == "full" &&
                                block % std::max<std::int64_t>(plan.checkpointing.every, 1) == 0);
  Builder(step, plan).run();
  list_buffers(step);
  return step;
}

}  // namespace shardfit::schedule
