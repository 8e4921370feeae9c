#include "selector/memory/outlook.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "selector/hardware/device.hpp"
#include "selector/memory/bounds.hpp"
#include "selector/memory/host.hpp"
#include "selector/memory/host_terms.hpp"
#include "selector/memory/limits.hpp"
#include "selector/memory/pipeline.hpp"
#include "selector/memory/rank_replay.hpp"
#include "selector/schedule/supported.hpp"

namespace shardfit::memory {
namespace {

std::int64_t scaled(std::int64_t elements, double bytes) { return static_cast<std::int64_t>(static_cast<double>(elements) * bytes); }

enum class Keeps { kAll, kInput, kPolicy };

Keeps keeps(const Setup& s, std::int64_t block) {
  using C = Setup::Checkpoint;
  if (s.checkpoint == C::kFull || (s.checkpoint == C::kEvery && (block + 1) % s.checkpoint_every == 0) || (s.checkpoint == C::kFirst && block % s.chunk_blocks < s.checkpoint_first)) return Keeps::kInput;
  return s.checkpoint == C::kSelectiveOp ? Keeps::kPolicy : Keeps::kAll;
}

bool is_made(const Tape& tape, const TapeOp& op) { return op.out >= 0 && op.more_outs.empty() && tape.base(op.out) == op.out; }

// What a forward leaves behind, without the block's input and output.
std::int64_t kept_inside(const Tape& tape, Keeps how) {
  if (how == Keeps::kInput) return 0;
  std::int64_t sum = 0;
  std::vector<char> counted(tape.tensors.size(), 0);
  for (const auto& op : tape.ops) {
    if (is_made(tape, op) && op.out != tape.output && !counted[static_cast<std::size_t>(op.out)]) {
      counted[static_cast<std::size_t>(op.out)] = 1;
      if (how == Keeps::kPolicy ? op.kept_by_policy : tape.tensors[static_cast<std::size_t>(op.out)].is_saved) sum += tape.bytes(op.out);
    }
    if (how == Keeps::kAll && op.needs_gradient)
      for (auto b : op.extra) sum += b;
  }
  return sum;
}

// Sizes in whole 512 bytes: what is left of an allocator's larger blocks is not counted.
constexpr CachingAllocator::Options kTight{.expandable_segments = true};

// The same by running the forward as the replay runs its outermost blocks: under tensor parallelism less stays there.
std::int64_t kept_by_forward(const Tape& tape) {
  Timeline timeline(kTight);
  TapeRunner run(timeline);
  Saved kept;
  const auto x = timeline.make(tape.bytes(tape.input), Term::kActivations);
  const auto y = run.forward(tape, x, {}, &kept);
  std::int64_t bytes = timeline.allocated() - timeline.bytes(x);
  if (y != x) bytes -= timeline.bytes(y);
  return bytes;
}

// Bytes of the output where it is a tensor of its own.
std::int64_t output_bytes(const Tape& tape) {
  const bool made = std::any_of(tape.ops.begin(), tape.ops.end(), [&](const TapeOp& op) { return op.out == tape.output && is_made(tape, op); });
  return made ? tape.bytes(tape.output) : 0;
}

bool saved(const Tape& tape, int tensor) { return tape.tensors[static_cast<std::size_t>(tensor)].is_saved; }

// Most that forward and backward of a tape need at once, its input left out.
std::int64_t peak_of(const Setup& s, const Tape& tape, Keeps how) {
  Timeline timeline(kTight);
  TapeRunner run(timeline);
  run.gradients_leave = true;  // at the least
  Saved kept;
  std::vector<Timeline::Handle> weights;
  const auto x = timeline.make(tape.bytes(tape.input), Term::kActivations);
  const std::int64_t input = timeline.allocated();
  TapeRunner::Forward forward;
  if (how == Keeps::kInput) {
    forward.stop_after = s.reentrant ? -1 : std::max(0, tape.last_saving_op);
    const auto gy = timeline.make(tape.bytes(tape.output), Term::kActivationGradients);
    timeline.drop(run.forward(tape, x, forward, &kept));
    timeline.drop(x);
    run.backward(tape, kept, gy, weights);
  } else {
    const auto y = run.forward(tape, x, forward, &kept);
    timeline.drop(x);
    run.backward(tape, kept, y, weights);
  }
  return timeline.allocated_peak() - input;
}

class Floor {
 public:
  Floor(const Setup& s, const ModelSizes& sizes) : s_(s), sizes_(sizes), frozen_(frozen_inputs(s, sizes)) {}

  struct Bytes {
    std::int64_t certain = 0, all = 0;  // certain: parameters, master weights, optimizer states
  };
  // `enough`: where the cheaper part of the sum is above that, the rest is left out.
  Bytes of(const StageLayout& layout, double enough) {
    Bytes b = resting(layout);
    if (!s_.model.encoder_decoder) b.all += activations(layout, enough - static_cast<double>(b.all));
    return b;
  }

 private:
  const UnitSizes& unit(std::int64_t block) const { return sizes_.blocks[static_cast<std::size_t>(sizes_.kind(block))]; }

  // From the second step on.
  Bytes resting(const StageLayout& layout) const {
    const bool sharded = s_.stage == 3;
    GatherUnit all;
    const auto fixed_blocks = fixed_buffers(s_);
    std::int64_t bytes = std::accumulate(fixed_blocks.begin(), fixed_blocks.end(), std::int64_t{0}), parameters = 0, states = 0, certain = 0;
    const auto add = [&](const UnitSizes& u) {
      all.add(u);
      parameters += sharded ? u.rest_shard_bytes : u.rest_bytes;
      for (auto n : u.state_tensors) states += scaled(n, s_.state_bytes);
    };
    for (auto b : layout.blocks) add(unit(b));
    if (layout.first || (layout.last && (s_.model.tied_embeddings || layout.predictions > 0))) add(sizes_.embedding_of(layout));
    if (layout.last) add(sizes_.head);
    if (!s_.offload_parameters) certain += parameters;
    if (all.trained == 0) return {certain, certain + bytes};
    if (s_.states_on_device) certain += states;
    const std::int64_t mine = s_.stage >= 1 ? all.trained_shard : all.trained;
    const double here = 1 - optimizer_share_off_device(s_, static_cast<double>(mine));
    if (s_.master_bytes > 0 && here > 0) certain += scaled(mine, s_.master_bytes * here);
    Timeline fixed(kTight);
    make_sharder(s_, fixed)->allocate_fixed(all);
    bytes += fixed.allocated();
    const bool by_block = sharded && s_.shard > 1 && (s_.engine == Engine::kFsdp2 || s_.engine == Engine::kOwn);
    if (by_block && s_.reshard == job::Sharding::Reshard::kFalse)
      for (auto b : layout.blocks) bytes += unit(b).gather_bytes;
    if (by_block && s_.accumulation > 1 && !s_.in_backward && !s_.offload_gradients && !s_.adapters.any && !s_.no_sync) bytes += scaled(all.trained_shard, s_.gradient_bytes);
    return {certain, certain + bytes};
  }

  std::int64_t activations(const StageLayout& layout, double enough) {
    const auto& order = layout.replayed();
    if (order.empty()) return 0;
    const BlockShape shape{.tokens = s_.tokens, .encoder_tokens = s_.tokens, .sequences = s_.micro_batch, .sequence = s_.sequence};
    struct Kind {
      std::unique_ptr<Tape> tape;
      std::int64_t inside[3] = {-1, -1, -1}, output = 0;
    };
    std::vector<Kind> kinds(2 * sizes_.blocks.size());   // those with a frozen input apart
    const auto kind = [&](std::int64_t block) -> Kind& {
      const auto index = static_cast<std::size_t>(sizes_.kind(block));
      const bool frozen = frozen_[static_cast<std::size_t>(block)] != 0;
      auto& k = kinds[2 * index + (frozen ? 1 : 0)];
      if (!k.tape) {
        BlockShape its_shape = shape;
        its_shape.frozen_input = frozen;
        k.tape = std::make_unique<Tape>(block_tape(s_, sizes_.block(s_, static_cast<int>(index)), sizes_.blocks[index], its_shape));
        k.output = output_bytes(*k.tape);
      }
      return k;
    };
    std::int64_t of_last = 0;
    const auto kept_of = [&](const std::vector<std::int64_t>& order) {
      std::int64_t kept = 0;
      for (std::size_t i = 0; i < order.size(); ++i) {
        Kind& k = kind(order[i]);
        const Keeps how = keeps(s_, order[i]);
        auto& inside = k.inside[static_cast<int>(how)];
        if (inside < 0) {
          inside = kept_inside(*k.tape, how);
          if (how == Keeps::kAll) inside = std::max<std::int64_t>(0, std::min(inside, kept_by_forward(*k.tape)));
        }
        of_last = inside;
        kept += inside;
        if (i + 1 == order.size()) break;
        // The next block's input stays where either block keeps it.
        const Kind& next = kind(order[i + 1]);
        const Keeps next_how = keeps(s_, order[i + 1]);
        const bool stays = (how == Keeps::kAll && saved(*k.tape, k.tape->output)) ||
                           (next_how == Keeps::kAll ? saved(*next.tape, next.tape->input) : !s_.offload_activations && s_.recompute_group == 1);
        if (stays) kept += k.output;
        }
      return kept;
    };
    std::int64_t held = 0;
    for (const auto& chunk : layout.held) held += chunk.count * kept_of(chunk.blocks);
    const std::int64_t kept = kept_of(order);
    std::int64_t most = kept;
    if (static_cast<double>(most + held) > enough) return most + held;
    if (layout.last) {
      if (head_peak_ < 0) head_peak_ = peak_of(s_, head_tape(s_, sizes_.head, shape), Keeps::kAll);
      most = std::max(most, kept + head_peak_);
    }
    const Keeps last_how = keeps(s_, order.back());
    if (last_how != Keeps::kPolicy) most = std::max(most, kept - of_last + peak_of(s_, *kind(order.back()).tape, last_how));
    return most + held;
  }

  const Setup& s_;
  const ModelSizes& sizes_;
  std::vector<char> frozen_;
  std::int64_t head_peak_ = -1;
};

// What our runtime allocates on CPU ranks is its own list, which is quickly made; nothing of it is uncertain.
bool own_list(const Request& r) { return r.device.is_cpu && r.job.framework.name == "shardfit" && !schedule::why_unsupported(r.job, r.plan, &r.model); }

}  // namespace

Outlook outlook(const Request& request) {
  if (!request.plan.checkpointing.stated && request.plan.checkpointing.kind == "none" && request.job.framework.name != "shardfit") {
    job::Plan plan = request.plan;  // it may turn out to run with checkpointing
    plan.checkpointing.stated = true;
    plan.checkpointing.kind = "full";
    return outlook({request.job, plan, request.model, request.device, nullptr});
  }
  const Setup s = make_setup(request);
  check_sizes(s);
  const Overheads over = overheads_of(s);
  Outlook o;
  const double device = request.plan.device_memory_gib ? *request.plan.device_memory_gib * 1073741824.0 : request.device.memory_bytes();
  o.capacity = device > 0 ? std::max(0.0, device - static_cast<double>(request.device.is_cpu ? 0 : over.driver_reserve)) : 0;
  if (own_list(request)) return o;
  const ModelSizes sizes = model_sizes(s);
  Floor floor(s, sizes);
  const Bounds bounds = bounds_of(s);
  const double enough = o.capacity > 0 ? o.capacity / ((1 - bounds.below) * (1 - bounds.rest_below)) : std::numeric_limits<double>::infinity();
  for (const auto& layout : pipeline_stages(s, static_cast<std::int64_t>(sizes.order.size()))) {
    const auto bytes = floor.of(layout, enough);
    StageResult stage;
    stage.allocated_peak = bytes.all;
    if (request.plan.checkpoint_load == "sharded") stage.terms[static_cast<std::size_t>(Term::kParameters)] = bytes.certain;  // else loading may be the fullest moment
    o.least = std::max(o.least, static_cast<double>(low_bound(bounds, stage)));
    o.likely = std::max(o.likely, static_cast<double>(bytes.all));
  }
  o.least += static_cast<double>(over.least);
  o.likely += static_cast<double>(over.total());
  return o;
}

std::string host_verdict(const Request& request) {
  Result r;  // of a device that has plenty
  r.capacity_bytes = std::numeric_limits<double>::max();
  const Setup s = make_setup(request);
  const HostBytes host = host_bytes(s, model_sizes(s));
  r.memory.host = host.total;
  judge(request, s, host, r);
  return r.fits;
}

Result at_host(const Request& request, const Result& elsewhere) {
  Result r = elsewhere;
  const bool may_recompute = elsewhere.fits == "unsure" && elsewhere.needed_low > elsewhere.capacity_bytes;  // estimate_memory's own verdict
  if (may_recompute) r.needed_low = 0;
  r.why.clear();
  const Setup s = make_setup(request);
  judge(request, s, host_bytes(s, model_sizes(s)), r);
  if (may_recompute) {
    r.needed_low = elsewhere.needed_low;
    if (r.fits == "unsure") r.why = elsewhere.why;
  }
  return r;
}

}  // namespace shardfit::memory
