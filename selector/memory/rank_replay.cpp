#include "selector/memory/rank_replay.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "selector/hardware/device.hpp"
#include "selector/memory/gather_parts.hpp"
#include "selector/memory/host_terms.hpp"
#include "selector/memory/optimizer_rules.hpp"
#include "selector/memory/overheads.hpp"
#include "selector/memory/prediction_block.hpp"

namespace shardfit::memory {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr int kReplayedEnds = 3;       // of equal blocks, so many at each end are replayed in full; between them memory changes evenly

enum class Mode : std::uint8_t { kKeep, kRecompute, kPolicy };

Mode mode_of(const Setup& s, std::int64_t block) {
  using C = Setup::Checkpoint;
  switch (s.checkpoint) {
    case C::kFull: return Mode::kRecompute;
    case C::kEvery: return (block + 1) % s.checkpoint_every == 0 ? Mode::kRecompute : Mode::kKeep;
    case C::kFirst: return block % s.chunk_blocks < s.checkpoint_first ? Mode::kRecompute : Mode::kKeep;
    case C::kSelectiveOp: return Mode::kPolicy;
    default: return Mode::kKeep;
  }
}

std::int64_t scaled(std::int64_t elements, double bytes) { return static_cast<std::int64_t>(static_cast<double>(elements) * bytes); }

bool embedding_trains(const Setup& s, const ModelSizes& sizes) {
  const auto& roles = sizes.embedding.roles;
  for (std::size_t i = 0; i < roles.size(); ++i)
    if (roles[i].trainable && s.model.embedding.parameters[i].kind == model::Parameter::Kind::kEmbedding) return true;
  return false;
}

class RankReplay {
 public:
  RankReplay(const Setup& s, const ModelSizes& sizes, const StageLayout& layout, const ReplayOptions& options)
      : s_(s), sizes_(sizes), layout_(layout), options_(options), t_({s.plan.expandable_segments, options.allocator_limit, s.graph == Setup::Graph::kCudaGraph ? kGather : -1}), run_(t_), sharder_(make_sharder(s, t_)) {
    t_.record_to(options.trace);
    if (s.graph != Setup::Graph::kNone) t_.run_as_graph(s.graph == Setup::Graph::kCudaGraph);
    if (s.collectives_record) {
      t_.hold_recorded(1024);
      options_.every_block = true;
    }
    order_ = layout.replayed();
    if (s.recompute_group > 1) options_.every_block = true;
    frozen_input_ = frozen_inputs(s_, sizes_);
    choose_replayed();
  }

  StageResult run() {
    load();
    const std::int64_t micro_steps = s_.longest_first ? 1 : std::min<std::int64_t>(s_.accumulation, s_.no_sync ? 3 : 2);  // first, last, and without sync one between
    for (int step = 1; step <= (s_.longest_first ? 1 : 2); ++step) {
      t_.set_step(step);
      auto held = hold_earlier_batches();
      for (auto h : pipeline_buffers(step)) held.push_back(h);
      for (std::int64_t m = 0; m < micro_steps; ++m) {
        sharder_->begin_micro_step(m + 1 == (s_.longest_first ? s_.accumulation : micro_steps));
        forward();
        loss_and_backward();
      }
      for (auto h : retained_) t_.drop(h);
      retained_.clear();
      // schedules.py, _merge_outputs: what step() returns of the last stage
      if (s_.pp > 1 && layout_.last && s_.engine != Engine::kMegatron && s_.engine != Engine::kZero && keeps_stage_outputs()) t_.drop(t_.make(s_.accumulation * stage_logits(), Term::kLogits));
      for (auto h : held) t_.drop(h);
      optimizer_step(step);
    }
    StageResult r;
    r.reserved_peak = t_.reserved_peak();   // of training; saving may stretch it, if it happens
    save();
    r.allocated_peak = t_.allocated_peak();
    r.reserved_peak = std::max(r.reserved_peak, r.allocated_peak);
    r.phase = t_.peak_phase();
    r.terms = t_.peak_terms();
    for (std::size_t p = 0; p < kPhases; ++p) r.phase_peaks[p] = t_.phase_peak(static_cast<Phase>(p));
    r.waiting_peak = t_.waiting_peak();
    r.ran_out = t_.ran_out();
    r.events = t_.events();
    return r;
  }

 private:
  using Handle = Timeline::Handle;
  struct Flat {                         // what goes into a flat parameter
    const model::Block* block = nullptr;
    const UnitSizes* sizes = nullptr;
    bool of_root = false;
  };
  struct PartBlock {
    PartBlock(const Setup& s, model::Block b) : block(std::move(b)), sizes(unit_sizes(s, block)) {}
    model::Block block;
    UnitSizes sizes;
  };
  static constexpr Handle kNone = Timeline::kNone;

  int kind(std::int64_t block) const { return sizes_.kind(block); }
  const UnitSizes& unit(std::int64_t block) const { return sizes_.blocks[static_cast<std::size_t>(kind(block))]; }
  bool is_encoder(std::int64_t block) const { return block < sizes_.encoder_blocks; }

  BlockShape shape_of(bool encoder) const {
    const bool two = s_.model.encoder_decoder;
    BlockShape b;
    b.sequences = s_.micro_batch;
    b.sequence = two && !encoder ? s_.decoder_sequence : s_.sequence;
    b.tokens = s_.micro_batch * b.sequence;
    b.encoder_tokens = s_.tokens;
    return b;
  }
  BlockShape head_shape() const {
    BlockShape b = shape_of(false);
    b.frozen_input = frozen_input_.back() != 0;
    return b;
  }
  const Tape& tape(std::int64_t block) {
    const int k = kind(block);
    const bool frozen = frozen_input_[static_cast<std::size_t>(block)] != 0;
    if (tapes_.size() < 2 * sizes_.blocks.size()) tapes_.resize(2 * sizes_.blocks.size());
    auto& slot = tapes_[2 * static_cast<std::size_t>(k) + (frozen ? 1 : 0)];
    if (!slot) {
      BlockShape shape = shape_of(is_encoder(block));
      shape.frozen_input = frozen;
      slot = std::make_unique<Tape>(block_tape(s_, sizes_.block(s_, k), sizes_.blocks[static_cast<std::size_t>(k)], shape));
    }
    return *slot;
  }

  void choose_replayed() {
    std::map<std::pair<int, Mode>, std::vector<std::size_t>> classes;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const int frozen = frozen_input_[static_cast<std::size_t>(order_[i])];
      classes[{2 * kind(order_[i]) + frozen, mode_of(s_, order_[i])}].push_back(i);
    }
    replayed_.assign(order_.size(), options_.every_block ? 1 : 0);
    for (const auto& [key, where] : classes)
      for (std::size_t j = 0; j < where.size(); ++j)
        if (j < kReplayedEnds || j + kReplayedEnds >= where.size()) replayed_[where[j]] = 1;
  }

  // The last stage of a pipeline has a copy of its own of a table that is tied to the output projection.
  // So has one that predicts further tokens.
  bool holds_embedding() const { return layout_.first || (layout_.last && (s_.model.tied_embeddings || layout_.predictions > 0)); }
  bool whole_units() const { return s_.stage == 3; }

  // Blocks a gather unit (schedule.unit).
  std::size_t group() const { return static_cast<std::size_t>(std::max<std::int64_t>(1, s_.unit_blocks)); }

  void load() {
    t_.enter(Phase::kLoad);
    GatherUnit all;
    for (auto b : layout_.blocks) all.add(unit(b));
    if (holds_embedding()) all.add(sizes_.embedding_of(layout_));
    if (layout_.last) all.add(sizes_.head);
    const bool sharded = whole_units();
    std::vector<std::int64_t> whole, mine;
    for (auto b : layout_.blocks) {
      whole.push_back(unit(b).rest_bytes);
      mine.push_back(sharded ? unit(b).rest_shard_bytes : unit(b).rest_bytes);
    }
    std::int64_t root_whole = 0, root_mine = 0;
    for (int e = 0; e < 2; ++e) {
      if (!(e == 0 ? holds_embedding() : layout_.last)) continue;
      const auto& u = e == 0 ? sizes_.embedding_of(layout_) : sizes_.head;
      root_whole += u.rest_bytes;
      root_mine += sharded ? u.rest_shard_bytes : u.rest_bytes;
    }
    whole.push_back(root_whole);
    mine.push_back(root_mine);
    if (s_.plan.checkpoint_load == "full_copy_per_gpu" && s_.shard > 1 && sharded) {
      // the whole model is on the device; unit by unit it is made flat and its shard kept
      std::vector<Handle> full;
      for (auto b : whole) full.push_back(t_.make(b, Term::kLoading));
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const auto flat = t_.make(whole[i], Term::kLoading);
        t_.make(mine[i], Term::kParameters);
        t_.drop(flat);
        t_.drop(full[i]);
      }
    } else if (!s_.offload_parameters && s_.engine == Engine::kFsdp1 && sharded && s_.shard > 1) {
      load_flat_units();
    } else if (!s_.offload_parameters && flattened_on_device(all)) {
      load_and_flatten(all);
    } else if (!s_.offload_parameters) {
      for (auto b : mine) t_.make(b, Term::kParameters);
    }
    for (const auto bytes : fixed_buffers(s_)) t_.make(bytes, Term::kBuffers);
    if (s_.fp8_weight_bytes > 0) {
      std::int64_t matrices = 0;
      for (auto b : layout_.blocks) matrices += unit(b).matrices;
      t_.make(scaled(matrices, s_.fp8_weight_bytes), Term::kCasts);
    }
    trained_ = all.trained;
    trained_mine_ = s_.stage >= 1 ? all.trained_shard : all.trained;
    const double here = 1 - optimizer_share_off_device(s_, static_cast<double>(trained_mine_));
    if (s_.master_bytes > 0 && all.trained > 0 && here > 0) t_.make(scaled(trained_mine_, s_.master_bytes * here), Term::kMaster);
    sharder_->allocate_fixed(all);
    for (std::size_t k = 0; k < order_.size(); ++k) {
      if (k % group() == 0) sharder_->units.emplace_back();
      sharder_->units.back().add(unit(order_[k]));
    }
    if (layout_.chunked && s_.engine == Engine::kFsdp2 && s_.stage == 3) {
      // stages of a pipeline do not reshard and keep unsharded gradients: so do the chunks that are not replayed
      for (auto b : layout_.blocks) {
        if (std::find(order_.begin(), order_.end(), b) != order_.end()) continue;
        t_.make(unit(b).gather_bytes, Term::kGathered);
        t_.make(scaled(unit(b).trained, s_.reduce_bytes), Term::kUnshardedGradients);
      }
    }
    if (holds_embedding()) embedding_.add(sizes_.embedding_of(layout_));
    if (layout_.last) head_.add(sizes_.head);
    root_ = GatherUnit{};
    if (holds_embedding()) root_.add(sizes_.embedding_of(layout_));
    if (layout_.last) root_.add(sizes_.head);
    split_root_ = s_.split_root || (s_.engine == Engine::kZero && s_.stage == 3);
    tied_head_ = s_.model.tied_embeddings;
    if (tied_head_ && split_root_ && layout_.last) {                      // the table is gathered again for the projection
      head_.gather_bytes += sizes_.embedding_of(layout_).gather_bytes;
      head_.elements += sizes_.embedding_of(layout_).elements;
    }
    walk_model();
    t_.mark("load");
  }

  // For sharders that follow the modules of the code.
  void walk_model() {
    for (std::size_t k = 0; k < order_.size(); ++k) {
      const int kind_of = kind(order_[k]);
      walk_.blocks.push_back({&tape(order_[k]), &sizes_.block(s_, kind_of), &unit(order_[k]), kind_of, mode_of(s_, order_[k]) != Mode::kKeep, replayed_[k] != 0});
    }
    if (layout_.first) walk_.embedding = &sizes_.embedding;
    if (layout_.last) {
      walk_.head = &sizes_.head;
      head_tape_ = std::make_unique<Tape>(head_tape(s_, sizes_.head, head_shape()));
      walk_.head_tape = head_tape_.get();
    }
    sharder_->prepare(walk_);
    for (const auto k : sharder_->fullest_blocks()) replayed_[k] = 1;
  }

  // stage_1_and_2.py: from 0.19.0 on trained parameters become one flat tensor on the device where there is room for it beside them
  // (before, they went through the host); the memory that they came in stays in the allocator's cache.
  bool flattened_on_device(const GatherUnit& all) const {
    if (s_.engine != Engine::kZero || s_.colossal || s_.zero.release < 1900 || s_.stage < 1 || s_.stage > 2 || s_.adapters.any) return false;
    const auto bytes = scaled(all.trained, s_.parameter_bytes);
    return all.trained == all.elements && (options_.allocator_limit <= 0 || 2 * bytes < options_.allocator_limit);
  }
  void load_and_flatten(const GatherUnit& all) {
    std::vector<Handle> tensors;
    each_unit([&](const UnitSizes& u) {
      for (auto n : u.whole_tensors) tensors.push_back(t_.make(scaled(n, s_.parameter_bytes), Term::kLoading));
    });
    t_.make(scaled(all.trained, s_.parameter_bytes), Term::kParameters);
    for (auto h : tensors) t_.drop(h);
  }

  void load_flat_units() {
    std::map<int, std::vector<Flat>> split;   // by kind of block: its units, the last what the root has of it
    std::vector<Flat> root;
    for (auto b : layout_.blocks) {
      if (!s_.gather_parts) {
        load_flat({{&sizes_.block(s_, kind(b)), &unit(b)}});
        continue;
      }
      auto& units = split[kind(b)];
      if (units.empty()) {
        const auto& block = sizes_.block(s_, kind(b));
        const auto parts = gather_parts(s_, block);
        for (int p = 0; p <= parts.count; ++p) part_blocks_.push_back(std::make_unique<PartBlock>(s_, part_of_block(block, parts.of, p < parts.count || parts.whole ? p : BlockParts::kRoot)));
        for (int p = 0; p <= parts.count; ++p) {
          const auto& it = *part_blocks_[part_blocks_.size() - static_cast<std::size_t>(parts.count + 1 - p)];
          units.push_back({&it.block, &it.sizes, p == parts.count && !parts.whole});
        }
      }
      for (const auto& u : units)
        if (u.of_root) root.push_back(u);
        else load_flat({u});
    }
    const bool apart = s_.split_root;
    if (holds_embedding()) root.push_back({&s_.model.embedding, &sizes_.embedding_of(layout_)});
    if (apart && holds_embedding()) load_flat({root.back()}), root.pop_back();
    if (layout_.last) root.push_back({&s_.model.head, &sizes_.head});
    if (apart && layout_.last) load_flat({root.back()}), root.pop_back();
    if (!root.empty()) load_flat(root);
  }

  // FSDP1 wraps from the inside out (torch/distributed/fsdp/_init_utils.py): a unit's tensors come to the device, are broadcast from
  // rank 0 in buckets of 250 MB, concatenated into a flat parameter, and the rank's part of that is kept. What this leaves in the
  // allocator's cache the step uses again.
  void load_flat(const std::vector<Flat>& parts) {
    constexpr std::int64_t kBucket = 250LL << 20;
    std::vector<Handle> tensors;
    std::int64_t whole = 0, bucket = 0, largest_bucket = 0, shard = 0;
    for (const auto& part : parts) {
      shard += part.sizes->rest_shard_bytes;
      for (std::size_t i = 0; i < part.block->parameters.size(); ++i) {
        const double each = part.sizes->roles[i].quantized ? s_.quantized_bytes : s_.parameter_bytes;
        const std::int64_t bytes = scaled(part.block->parameters[i].elements(), each);
        tensors.push_back(t_.make(bytes, Term::kLoading));
        whole += bytes;
        if (bucket > 0 && bucket + bytes > kBucket) bucket = 0;
        bucket += bytes;
        largest_bucket = std::max(largest_bucket, bucket);
      }
    }
    t_.drop(t_.make(largest_bucket, Term::kLoading));
    const auto flat = t_.make(whole, Term::kLoading);
    for (auto h : tensors) t_.drop(h);
    t_.make(shard, Term::kParameters);
    t_.drop(flat);
  }

  std::vector<Handle> hold_earlier_batches() {
    std::vector<Handle> held;
    if (held_bytes_.empty())
      for (const auto& chunk : layout_.held) held_bytes_.push_back(bytes_in_flight(chunk.blocks));
    for (std::size_t c = 0; c < layout_.held.size(); ++c) make_many(layout_.held[c].count, held_bytes_[c], Term::kActivations, held);
    return held;
  }

  // What a chunk's forward leaves until its backward.
  std::int64_t bytes_in_flight(const std::vector<std::int64_t>& blocks) {
    Timeline scratch({});
    TapeRunner r(scratch);
    const auto& first = tape(blocks.front());
    Handle x = scratch.make(first.bytes(first.input), Term::kActivations);
    std::vector<Saved> saved(blocks.size());
    std::vector<std::vector<Handle>> kept(blocks.size());
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      const auto& g = tape(blocks[k]);
      TapeRunner::Forward how;
      const Mode mode = mode_of(s_, blocks[k]);
      how.save = mode == Mode::kKeep;
      if (mode == Mode::kPolicy) {
        kept[k].assign(g.tensors.size(), kNone);
        how.kept = &kept[k];
        how.collect_policy = true;
      }
      const Handle y = r.forward(g, x, how, how.save ? &saved[k] : nullptr);
      if (mode == Mode::kKeep || (mode == Mode::kRecompute && !starts_recompute(k))) scratch.drop(x);
      x = y;
    }
    // Megatron frees what a stage sent on (deallocate_pipeline_outputs); torch's stages keep it for their backward
    if (s_.engine == Engine::kMegatron) scratch.drop(x);
    return scratch.allocated();
  }

  // What a pipeline holds of its micro batches. Beyond a thousand, several as one block: a replay of millions would not end.
  void make_many(std::int64_t count, std::int64_t bytes, Term term, std::vector<Handle>& held) {
    const std::int64_t blocks = std::clamp<std::int64_t>(count, 0, 1024);
    for (std::int64_t i = 0; i < blocks; ++i) held.push_back(t_.make(bytes * (count * (i + 1) / blocks - count * i / blocks), term));
  }

  // torch.distributed.pipelining, stage.py: the first step makes buffers for what each micro batch receives, inputs
  // (_create_act_recv_info) and gradients of outputs (_create_grad_recv_info), and keeps them; an input buffer is what its micro batch
  // works on. Until the end of a step live the gradients of the inputs and, before torch 2.9 (save_forward_output), all outputs.
  std::vector<Handle> pipeline_buffers(int step) {
    std::vector<Handle> held;
    if (s_.pp <= 1 || s_.engine == Engine::kMegatron || s_.engine == Engine::kZero || order_.empty()) return held;
    const auto &front = tape(order_.front()), &back = tape(order_.back());
    const std::int64_t in = front.bytes(front.input), out = back.bytes(back.output), chunks = std::max<std::int64_t>(1, s_.vp);
    const std::int64_t receives = (chunks - (layout_.first ? 1 : 0)) * s_.accumulation, sends = (chunks - (layout_.last ? 1 : 0)) * s_.accumulation;
    const std::int64_t alive = layout_.held_batches() + 1;      // counted with their activations
    if (step == 1) {
      t_.make(std::max<std::int64_t>(0, receives - alive) * in, Term::kBuffers);
      t_.make(sends * out, Term::kBuffers);
    }
    make_many(receives - alive, in, Term::kActivationGradients, held);
    if (keeps_stage_outputs()) {
      make_many(sends - alive, out, Term::kActivations, held);
      if (layout_.last) make_many(s_.accumulation, stage_logits(), Term::kLogits, held);
    }
    return held;
  }
  bool keeps_stage_outputs() const { return s_.torch_date < 20251015 || (s_.trainer != "torchtitan" && layout_.last); }
  std::int64_t stage_logits() const {
    return s_.tokens * (s_.padded_vocabulary() / s_.tp) * (s_.loss.to_float == LossRules::Float::kModel ? 4 : s_.compute_bytes);
  }

  void forward() {
    t_.enter(Phase::kForward);
    const bool gather_root = whole_units();
    if (gather_root && split_root_ && layout_.first) {
      sharder_->gather_root(0, embedding_);
      sharder_->release_root(0);
    } else if (gather_root && !split_root_) {
      sharder_->gather_root(2, root_);
    }
    batch_ = t_.make(s_.tokens * 8 * 3, Term::kBatch);
    const std::int64_t stream_tokens = s_.sequence_parallel ? s_.tokens / s_.tp : s_.tokens;
    Handle x = t_.make(stream_tokens * s_.model.hidden * s_.residual_bytes, Term::kActivations);
    saved_.resize(order_.size());
    kept_.resize(order_.size());
    inputs_.assign(order_.size(), kNone);
    casts_.assign(order_.size(), kNone);
    for (std::size_t k = 0; k < order_.size(); ++k) {
      const auto block = order_[k];
      if (sizes_.encoder_blocks > 0 && block == sizes_.encoder_blocks) {
        encoder_output_ = x;
        x = t_.make(s_.micro_batch * s_.decoder_sequence * s_.model.hidden * s_.residual_bytes, Term::kActivations);
      }
      const auto& g = tape(block);
      if (k % group() == 0) sharder_->before_forward(k / group());
      const Mode mode = mode_of(s_, block);
      // a product keeps the copy of its weight for backward; where that is recomputed, autocast's cache still holds trained ones
      if (s_.autocast_cache) casts_[k] = t_.make((mode == Mode::kKeep ? unit(block).matrices : unit(block).trained_matrices) * s_.compute_bytes, Term::kCasts);
      TapeRunner::Forward how;
      how.save = mode == Mode::kKeep;
      how.cache = &cached_;
      if (mode == Mode::kPolicy) {
        kept_[k].assign(g.tensors.size(), kNone);
        how.kept = &kept_[k];
        how.collect_policy = true;
      }
      Saved* saved = how.save ? &saved_[k] : nullptr;
      run_.watcher = replayed_[k] ? sharder_->watch(k, Pass::kForward) : nullptr;
      const Handle y = replayed_[k] ? run_.forward(g, x, how, saved) : run_.forward_kept_only(g, x, how, saved);
      run_.watcher = nullptr;
      sharder_->pass_by(k, Pass::kForward);
      if (mode != Mode::kKeep && starts_recompute(k)) inputs_[k] = s_.offload_activations ? t_.make(512, Term::kActivations) : t_.share(x);
      t_.drop(x);
      x = y;
      if ((k + 1) % group() == 0 || k + 1 == order_.size()) sharder_->after_forward(k / group());
      if (t_.tracing()) t_.mark(fmt::format("block {} forward", block));
    }
    last_hidden_ = x;
  }

  bool starts_recompute(std::size_t k) const { return k % static_cast<std::size_t>(s_.recompute_group) == 0; }

  // Blocks up to `last` from the input of the first of their group on, each with all that its backward needs.
  void recompute_group(std::size_t last) {
    const std::size_t first = last - last % static_cast<std::size_t>(s_.recompute_group);
    Handle x = inputs_[first];
    inputs_[first] = kNone;
    if (s_.offload_activations) {
      t_.drop(x);
      x = t_.make(tape(order_[first]).bytes(tape(order_[first]).input), Term::kActivations);
    }
    for (std::size_t k = first; k <= last; ++k) {
      TapeRunner::Forward how;
      how.term = Term::kRecomputed;
      const Handle y = run_.forward(tape(order_[k]), x, how, &saved_[k]);
      t_.drop(x);
      x = y;
    }
    t_.drop(x);
  }

  void loss_and_backward() {
    t_.enter(Phase::kLoss);
    const bool gather_root = whole_units();
    if (gather_root && split_root_ && layout_.last) sharder_->gather_root(1, head_);
    Handle through = kNone, cache = kNone;
    Saved head_saved;
    Handle gx = kNone, head_cast = kNone;
    const bool has_loss = layout_.last;
    const auto logits = s_.micro_batch * (s_.model.encoder_decoder ? s_.decoder_sequence : s_.sequence) * (s_.padded_vocabulary() / s_.tp);
    if (has_loss) {
      TapeRunner::Forward how;
      how.term = Term::kLogits;
      // each further prediction keeps what its own loss saved until the backward, which runs after the main loss's
      for (std::int64_t p = 0; p < layout_.predictions; ++p) earlier_losses_.push_back(t_.make(head_tape_->saved_bytes(), Term::kLogits));
      run_.watcher = sharder_->watch(Sharder::kHead, Pass::kForward);
      if (s_.autocast_cache) head_cast = t_.make((tied_head_ ? sizes_.embedding.elements : sizes_.head.matrices) * s_.compute_bytes, Term::kCasts);
      // a variable that holds what the model returned shares it, and lets go of the one of the step before
      how.on_model_output = [&](Handle output) {
        if (s_.loss.through_backward > 0 && head_tape_->bytes(head_tape_->model_output) == logits * s_.loss.through_backward) through = t_.share(output);
        t_.drop(old_outputs_);
        old_outputs_ = kNone;
      };
      const Handle y = run_.forward(*head_tape_, last_hidden_, how, &head_saved);
      run_.watcher = nullptr;
      t_.drop(old_outputs_);
      old_outputs_ = kNone;
      for (auto h : context_) t_.drop(h);
      context_.clear();
      for (auto h : cached_) t_.drop(h);                        // Trainer.compute_loss returns: the model's outputs are gone
      cached_.clear();
      if (s_.loss.key_value_cache)
        cache = t_.make(2 * s_.model.attention.kv_heads * s_.model.attention.head_dim * s_.tokens * s_.model.layers * 2, Term::kCache);
      if (s_.loss.through_backward > 0 && through < 0) through = t_.make(logits * s_.loss.through_backward, Term::kLogits);
      t_.drop(last_hidden_);
      gx = y;
    } else {
      gx = last_hidden_;
    }
    for (std::size_t k = 0; k < casts_.size(); ++k)
      if (mode_of(s_, order_[k]) != Mode::kKeep) {
        t_.drop(casts_[k]);
        casts_[k] = kNone;
      }
    sharder_->end_forward();
    if (s_.root_reshards && gather_root && !split_root_) sharder_->release_root(2);
    t_.mark("loss");
    t_.enter(Phase::kBackward);
    sharder_->begin_backward();
    run_.gradients_leave = sharder_->takes_gradients();
    Sharder::Handles weights;
    if (has_loss) {
      const bool again = s_.root_reshards && gather_root && !split_root_;
      if (again && head_tape_->projection < 0) sharder_->gather_root(2, root_, true);
      run_.watcher = sharder_->watch(Sharder::kHead, Pass::kBackward);
      gx = run_.backward(*head_tape_, head_saved, gx, weights, again ? std::function<void()>([this] { sharder_->gather_root(2, root_, true); }) : std::function<void()>());
      run_.watcher = nullptr;
      if (gather_root && split_root_) sharder_->reduce_root(1, head_, weights);
      else if (!gather_root && !sums_table()) sharder_->reduce_root(1, head_, weights);
      t_.drop(head_cast);
      for (auto h : earlier_losses_) t_.drop(h);
      earlier_losses_.clear();
      t_.mark("head backward");
    }
    Sharder::Handles root_weights;
    root_weights.swap(weights);
    // frozen units under FSDP1 and re-entrant checkpointing: the reshard-only hook (torch 2.4 _runtime_utils.py) keeps every
    // checkpoint input and its gradient to the end of backward
    const bool retains = s_.engine == Engine::kFsdp1 && s_.stage == 3 && s_.reentrant && s_.adapters.any && s_.checkpoint == Setup::Checkpoint::kFull;
    for (std::size_t k = order_.size(); k-- > 0;) {
      const auto block = order_[k];
      const auto& g = tape(block);
      if (sizes_.encoder_blocks > 0 && block == sizes_.encoder_blocks - 1) {   // into the encoder: the gradient of its output
        t_.drop(gx);
        gx = t_.make(s_.tokens * s_.model.hidden * s_.residual_bytes, Term::kActivationGradients);
        t_.drop(encoder_output_);
        encoder_output_ = kNone;
      }
      if (!g.requires_gradient(g.output) && group() == 1) {   // nothing up to here is trained: backward does not come this far
        t_.drop(gx);
        gx = kNone;
        t_.drop(casts_[k]);
        casts_[k] = kNone;
        continue;
      }
      if ((k + 1) % group() == 0 || k + 1 == order_.size()) sharder_->before_backward(k / group());
      if (gx < 0) gx = t_.make(g.bytes(g.output), Term::kActivationGradients);
      if (s_.autocast_cache && casts_[k] < 0) casts_[k] = t_.make(unit(block).matrices * s_.compute_bytes, Term::kCasts);
      Saved recomputed;
      Saved* saved = &saved_[k];
      Handle input = kNone;
      if (s_.recompute_group > 1 && mode_of(s_, block) == Mode::kRecompute) {
        if (starts_recompute(k + 1) || k + 1 == order_.size()) recompute_group(k);   // the others of the group are there then
      } else if (mode_of(s_, block) != Mode::kKeep) {
        input = inputs_[k];
        inputs_[k] = kNone;
        if (s_.offload_activations) {
          t_.drop(input);
          input = t_.make(g.bytes(g.input), Term::kActivations);
        }
        if (replayed_[k]) {
          TapeRunner::Forward how;
          how.term = Term::kRecomputed;
          how.stop_after = s_.reentrant ? -1 : std::max(0, g.last_saving_op);
          if (!kept_[k].empty()) how.kept = &kept_[k];
          run_.watcher = sharder_->watch(k, Pass::kRecompute);
          const Handle y = run_.forward(g, input, how, &recomputed);
          run_.watcher = nullptr;
          t_.drop(y);
          saved = &recomputed;
        } else {
          for (auto h : kept_[k]) t_.drop(h);
          saved = &recomputed;
        }
        kept_[k].clear();
        if (retains) retained_.push_back(t_.share(input));
        t_.drop(input);
      }
      run_.watcher = replayed_[k] ? sharder_->watch(k, Pass::kBackward) : nullptr;
      gx = replayed_[k] ? run_.backward(g, *saved, gx, weights) : run_.backward_kept_only(g, *saved, gx, weights);
      if (!casts_.empty()) {
        t_.drop(casts_[k]);
        casts_[k] = kNone;
      }
      run_.watcher = nullptr;
      sharder_->pass_by(k, Pass::kBackward);
      if (retains && gx >= 0) {
        if (replayed_[k]) {
          retained_.push_back(t_.share(gx));
        } else {                         // each block has a gradient of its own
          retained_.push_back(gx);
          gx = t_.make(g.bytes(g.input), Term::kActivationGradients);
        }
      }
      for (int t : g.context) new_context_.push_back(t_.make(g.bytes(t), Term::kActivations));
      if (k % group() == 0) sharder_->after_backward(k / group(), weights);
      if (t_.tracing()) t_.mark(fmt::format("block {} backward", block));
    }
    t_.drop(gx);
    sharder_->begin_embedding_backward();
    if (layout_.first && s_.model.vocabulary > 0 && embedding_trains()) {
      const auto rows = s_.padded_vocabulary() / s_.tp;
      const Handle table = t_.make(rows * s_.model.hidden * s_.weight_gradient_bytes, Term::kGradients);
      if (tied_head_ && layout_.last && (!gather_root || !root_weights.empty())) {
        // the engine adds it and the head's gradient of the same table into a third (InputBuffer::accumulate; torch 2.4 to 2.11)
        // unless it has been cast from autocast's format: that copy takes the sum
        if (!s_.autocast_cache) {
          Handle sum = t_.make(rows * s_.model.hidden * s_.weight_gradient_bytes, Term::kGradients);
          if (sums_table() && !root_weights.empty())
            std::swap(sum, *std::max_element(root_weights.begin(), root_weights.end(), [this](Handle a, Handle b) { return t_.bytes(a) < t_.bytes(b); }));
          t_.drop(sum);
        }
        t_.drop(table);
      } else {
        root_weights.push_back(table);
      }
    }
    if (!gather_root) sharder_->reduce_root(0, embedding_, root_weights);
    else if (split_root_) sharder_->reduce_root(0, embedding_, root_weights);
    else sharder_->reduce_root(2, root_, root_weights);
    sharder_->end_backward();
    t_.mark("embedding backward");
    t_.drop(cache);
    if (!s_.loss.persists) {
      t_.drop(through);
      through = kNone;
    }
    old_outputs_ = through;
    context_.swap(new_context_);
    t_.drop(batch_);
    batch_ = kNone;
  }

  // Whether the gradient of a tied table is left in the sum of its two parts, with nothing in between.
  bool sums_table() const { return tied_head_ && s_.engine == Engine::kDdp && layout_.first && layout_.last && embedding_trains(); }

  bool embedding_trains() const { return memory::embedding_trains(s_, sizes_); }

  // A full state dict is gathered unit by unit on rank 0 and moved to the host (FSDP1's FULL_STATE_DICT with offload, DeepSpeed's
  // consolidated 16-bit weights); FSDP2 and our runtime write shards.
  void save() {
    if (!whole_units() || s_.shard <= 1) return;
    if (s_.engine != Engine::kFsdp1 && !s_.zero.consolidates_on_save) return;
    t_.enter(Phase::kSave);
    std::int64_t most = scaled(s_.split_root ? std::max(embedding_.elements, head_.elements) : root_.elements, s_.parameter_bytes);
    for (const auto& u : sharder_->units) most = std::max(most, scaled(u.elements, s_.parameter_bytes));
    t_.drop(t_.make(most, Term::kGathered));
    t_.mark("save");
  }

  template <class F>
  void each_unit(F&& f) {
    for (auto b : layout_.blocks) f(unit(b));
    if (holds_embedding()) f(sizes_.embedding_of(layout_));
    if (layout_.last) f(sizes_.head);
  }

  void optimizer_step(int step) {
    t_.enter(Phase::kOptimizerStep);
    auto alive = trained_ > 0 ? sharder_->before_update() : Sharder::Handles();
    if (trained_ > 0) {
      if (step == 1 && s_.states_on_device) {
        // one tensor a parameter and state, as torch makes them in the first step: they fill the holes that activations left
        each_unit([&](const UnitSizes& u) {
          for (auto n : u.state_tensors) t_.make(scaled(n, s_.state_bytes), Term::kOptimizerStates);
        });
      }
      if (step == 1 && s_.offload_optimizer)           // the part of the states that is not offloaded
        if (const double here = 1 - optimizer_share_off_device(s_, static_cast<double>(trained_mine_)); here > 0)
          t_.make(scaled(trained_mine_, s_.states * s_.state_bytes * here), Term::kOptimizerStates);
      if (!s_.in_backward) step_transients();
      if (s_.low_bit_step) {             // torchao's single_param_adam works on fp32 copies of one tensor's weight and states
        std::int64_t tensor = 0;
        each_unit([&](const UnitSizes& u) {
          for (auto n : u.trained_tensors) tensor = std::max(tensor, n);
        });
        const auto gradient = s_.in_backward ? t_.make(scaled(tensor, s_.gradient_bytes), Term::kGradients) : kNone;
        t_.drop(t_.make(scaled(tensor, 12), Term::kOptimizerTemporaries));
        t_.drop(gradient);
      }
    }
    for (auto h : alive) t_.drop(h);
    sharder_->after_update();
    sharder_->zero_gradients();
    t_.synchronize();                  // the loss is read
    t_.mark("optimizer step");
  }

  void step_transients() {
    if (!s_.states_on_device) return;
    std::vector<Handle> made;
    if (const double each = foreach_copy(s_); each > 0) {
      each_unit([&](const UnitSizes& u) {
        for (auto n : u.trained_tensors) made.push_back(t_.make(scaled(n, each), Term::kOptimizerTemporaries));
      });
    } else if (s_.step == Setup::Step::kSingle && s_.engine == Engine::kFsdp1 && (s_.job.optimizer.name == "adamw" || s_.job.optimizer.name == "adam")) {   // one flat parameter a unit
      std::int64_t most = 0, root = 0;
      for (auto b : layout_.blocks) most = std::max(most, unit(b).trained_shard);
      if (holds_embedding()) root += sizes_.embedding_of(layout_).trained_shard;
      if (layout_.last) root += sizes_.head.trained_shard;
      made.push_back(t_.make(scaled(std::max(most, root), 2 * s_.state_bytes), Term::kOptimizerTemporaries));
    } else {
      std::int64_t most = 0;
      each_unit([&](const UnitSizes& u) { most = std::max(most, u.update_temporary); });
      made.push_back(t_.make(most, Term::kOptimizerTemporaries));
    }
    // Megatron's optimizers take 16-bit gradients as fp32 (distrib_optimizer.py _copy_model_grads_to_main_grads), the precision-aware one,
    // whose master weights are of 16 bits, as they are
    if (s_.engine == Engine::kMegatron && s_.gradient_bytes < 4 && s_.master_bytes > 2) made.push_back(t_.make(scaled(trained_mine_, 4), Term::kOptimizerTemporaries));
    if (s_.master_bytes > 0 && s_.engine == Engine::kZero && s_.stage == 0) {   // fused_optimizer.py: flattened, then cast
      std::int64_t n = 0;
      each_unit([&](const UnitSizes& u) { n += u.trained; });
      made.push_back(t_.make(scaled(n, s_.gradient_bytes), Term::kOptimizerTemporaries));
      made.push_back(t_.make(scaled(n, 4), Term::kOptimizerTemporaries));
    }
    for (auto h : made) t_.drop(h);
  }

  std::int64_t trained_mine_ = 0;      // elements whose optimizer state this rank keeps, wherever
  const Setup& s_;
  const ModelSizes& sizes_;
  const StageLayout& layout_;
  ReplayOptions options_;
  Timeline t_;
  TapeRunner run_;
  std::unique_ptr<Sharder> sharder_;
  std::vector<std::int64_t> order_;
  std::vector<char> replayed_, frozen_input_;
  std::vector<std::unique_ptr<Tape>> tapes_;
  std::unique_ptr<Tape> head_tape_;
  ModelWalk walk_;
  std::vector<Saved> saved_;
  std::vector<std::vector<Handle>> kept_;
  std::vector<std::int64_t> held_bytes_;
  std::vector<Handle> inputs_, casts_, retained_, earlier_losses_, context_, new_context_, cached_;
  GatherUnit embedding_, head_, root_;
  Handle last_hidden_ = kNone, encoder_output_ = kNone, old_outputs_ = kNone, batch_ = kNone;
  std::vector<std::unique_ptr<PartBlock>> part_blocks_;
  std::int64_t trained_ = 0;
  bool split_root_ = false, tied_head_ = false;
};

}  // namespace

std::vector<char> frozen_inputs(const Setup& s, const ModelSizes& sizes) {
  const std::size_t n = sizes.order.size();
  std::vector<char> frozen(n + 1, 0);
  const bool embedding = embedding_trains(s, sizes);
  bool gradient = embedding || s.checkpoint != Setup::Checkpoint::kNone;
  for (std::size_t b = 0; b < n; ++b) {
    if (static_cast<std::int64_t>(b) == sizes.encoder_blocks) gradient = gradient || embedding;
    frozen[b] = gradient ? 0 : 1;
    gradient = gradient || sizes.blocks[static_cast<std::size_t>(sizes.kind(static_cast<std::int64_t>(b)))].trained > 0;
  }
  frozen[n] = gradient ? 0 : 1;
  return frozen;
}

ModelSizes model_sizes(const Setup& s) {
  ModelSizes m;
  for (const auto& b : s.model.blocks) m.blocks.push_back(unit_sizes(s, b));
  if (s.predictions > 0 && !s.model.body.empty()) {
    m.prediction = prediction_block(s.model.blocks[static_cast<std::size_t>(s.model.body.back().block)], s.model.hidden);
    m.blocks.push_back(unit_sizes(s, *m.prediction));
  }
  m.embedding = unit_sizes(s, s.model.embedding);
  m.embedding_copy = unit_sizes(s, s.model.embedding, true);
  m.head = unit_sizes(s, s.model.head);
  for (const auto& run : s.model.encoder) m.order.insert(m.order.end(), static_cast<std::size_t>(run.count), run.block);
  m.encoder_blocks = s.model.encoder_decoder ? static_cast<std::int64_t>(m.order.size()) : 0;
  for (const auto& run : s.model.body) m.order.insert(m.order.end(), static_cast<std::size_t>(run.count), run.block);
  return m;
}

StageResult replay_rank(const Setup& setup, const ModelSizes& sizes, const StageLayout& layout, const ReplayOptions& options) {
  return RankReplay(setup, sizes, layout, options).run();
}

}  // namespace shardfit::memory
