#include "runtime/engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "regions/base/error.hpp"
#include "runtime/engine/draw.hpp"

namespace shardfit::engine {

using job::DType;
using schedule::Event;
using schedule::EventKind;
using schedule::width_of;

kernels::Type kernel_type(DType type) { return type == DType::kBf16 ? kernels::Type::kBf16 : kernels::Type::kFp32; }
comm::Type comm_type(DType type) { return type == DType::kBf16 ? comm::Type::kBf16 : comm::Type::kFp32; }

Engine::Engine(const schedule::Step& schedule, const models::Math& math, comm::Collective& collective,
               std::uint64_t seed, std::unique_ptr<kernels::Kernels> kernels, device::Kind kind)
    : step_(schedule), math_(math), collective_(collective), seed_(seed), kind_(kind) {
  if (collective.ranks() != step_.ranks) throw std::logic_error("the schedule is of another number of ranks");
  kernels_ = kernels ? std::move(kernels) : kernels::make_cpu_kernels(kernel_type(step_.sizes.precision.compute));
  for (const auto& buffer : step_.buffers)
    if (buffer.name != "communication")
      regions_.emplace(buffer.name, device::Region(buffer.name, buffer.bytes, kind));  // that one is the collective's
  std::int64_t before = 0;
  for (const auto& unit : step_.units) {
    held_offsets_.push_back(before);
    before += step_.held_elements(unit);
  }
  const float* rope_table = nullptr;
  if (step_.has_buffer("rope")) {
    std::vector<float> table(static_cast<std::size_t>(step_.sizes.sequence * step_.sizes.geometry.head_dim));
    models::fill_rope_table(math_, step_.sizes.sequence, table.data());
    kernels_->copy_to_device(region("rope").data(), table.data(),
                             static_cast<std::int64_t>(table.size() * sizeof(float)));
    rope_table = region("rope").as<float>();
  }
  family_ = models::make_family(math_, step_.sizes, step_.units, *kernels_, rope_table);
}

Engine::~Engine() = default;

char* Engine::held(const char* buffer, int unit, DType type) const {
  return region(buffer).bytes_at(held_offsets_[static_cast<std::size_t>(unit)] * width_of(type));
}

char* Engine::stream(int block) const {
  return region("stream").bytes_at(block * step_.sizes.tokens() * step_.sizes.geometry.hidden *
                                   width_of(step_.sizes.precision.compute));
}

models::Flat Engine::compute_weights(const Event& event) const {
  const auto& precision = step_.sizes.precision;
  const auto type = kernel_type(precision.compute);
  if (event.slot >= 0) return {region(fmt::format("gathered {}", event.slot)).data(), type};
  const bool copy = precision.compute != precision.parameters;
  return {held(copy ? "compute parameters" : "parameters", event.unit, precision.compute), type};
}

// Where a unit's backward writes: its own buffer, or straight into the gradients that are kept.
models::Flat Engine::fresh_gradients(int unit) const {
  const auto& precision = step_.sizes.precision;
  if (unit == 0) {
    if (step_.sharded) return {region("root gradients").data(), kernel_type(precision.gradients)};
    return {held("gradients", 0, precision.gradients), kernel_type(precision.gradients)};
  }
  if (step_.has_buffer("block gradients")) return {region("block gradients").data(), kernel_type(precision.compute)};
  return {held("gradients", unit, precision.gradients), kernel_type(precision.gradients)};
}

void Engine::take_batch(const MicroBatch& batch) {
  const auto n = step_.sizes.tokens(), length = step_.sizes.sequence;
  if (static_cast<std::int64_t>(batch.rows.size()) > step_.sizes.micro_batch)
    throw std::logic_error("more rows than the micro batch holds");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n), 0), positions(ids),
      targets(static_cast<std::size_t>(n), -100);
  batch_.documents.clear();
  batch_.samples.assign(static_cast<std::size_t>(step_.sizes.micro_batch), 0);
  for (std::size_t r = 0; r < batch.rows.size(); ++r) {
    const auto& row = batch.rows[r];
    const auto base = static_cast<std::int64_t>(r) * length;
    const auto used = std::min(row.length, length);
    for (std::int64_t i = 0; i < used; ++i) {
      const auto at = static_cast<std::size_t>(base + i), from = static_cast<std::size_t>(i);
      if (row.ids[from] < 0 || row.ids[from] >= step_.sizes.geometry.vocabulary)
        throw Error(
            "out_of_range", "/job/data/train",
            fmt::format("token id {}; the model's vocabulary has {}", row.ids[from], step_.sizes.geometry.vocabulary),
            "use the model's own tokenizer");
      ids[at] = row.ids[from];
      positions[at] = row.positions[from];
      if (i + 1 < used) {
        const auto label = row.labels[from + 1];
        if (label >= step_.sizes.geometry.vocabulary)
          throw Error("out_of_range", "/job/data/train",
                      fmt::format("label {}; the model's vocabulary has {}", label, step_.sizes.geometry.vocabulary),
                      "use the model's own tokenizer");
        targets[at] = label < 0 ? -100 : label;
      }
    }
    batch_.samples[r] = row.sample;
    for (std::size_t d = 0; d < row.document_starts.size(); ++d) {
      const auto begin = base + row.document_starts[d];
      const auto end = base + (d + 1 < row.document_starts.size() ? row.document_starts[d + 1] : used);
      if (begin < end) batch_.documents.push_back({begin, end, row.sample});
    }
  }
  auto* memory = region("batch").as<std::int32_t>();
  const auto bytes = n * static_cast<std::int64_t>(sizeof(std::int32_t));
  kernels_->copy_to_device(memory, ids.data(), bytes);
  kernels_->copy_to_device(memory + n, positions.data(), bytes);
  kernels_->copy_to_device(memory + 2 * n, targets.data(), bytes);
  batch_.ids = memory;
  batch_.positions = memory + n;
  batch_.targets = memory + 2 * n;
}

void Engine::run(const Event& event, const models::StepContext& context, bool training, double scale, bool accumulate,
                 bool last) {
  const auto& precision = step_.sizes.precision;
  const int block = event.unit - 1;
  auto* scratch = region("scratch").as<char>();
  auto saved = [&] { return region(fmt::format("saved {}", event.saved)).as<char>(); };
  auto* d_stream = region("d_stream").data();
  switch (event.kind) {
    case EventKind::kGather: {
      const auto& unit = step_.units[static_cast<std::size_t>(event.unit)];
      auto* out = region(fmt::format("gathered {}", event.slot)).as<char>();
      auto* own = out + collective_.rank() * unit.shard_elements * width_of(precision.compute);
      const auto* shard = held("parameters", event.unit, precision.parameters);
      if (precision.compute == precision.parameters) {
        collective_.all_gather(shard, out, unit.shard_elements, comm_type(precision.compute));
      } else {
        kernels_->cast(shard, kernel_type(precision.parameters), own, kernel_type(precision.compute),
                       unit.shard_elements);
        collective_.all_gather(own, out, unit.shard_elements, comm_type(precision.compute));
      }
      break;
    }
    case EventKind::kRelease: break;  // slots are fixed by the schedule: nothing to free
    case EventKind::kEmbed: family_->embed(compute_weights(event), batch_, context, stream(0)); break;
    case EventKind::kForward:
    case EventKind::kRecompute:
      family_->forward(block, compute_weights(event), batch_, context, stream(block), saved(), stream(block + 1),
                       scratch);
      break;
    case EventKind::kLoss: {
      const auto gradients = fresh_gradients(0);
      loss_ = family_->loss(compute_weights(event), training ? &gradients : nullptr, batch_,
                            stream(static_cast<int>(step_.units.size()) - 1), d_stream, scratch,
                            training ? &scale : nullptr, accumulate && !step_.sharded);
      break;
    }
    case EventKind::kBackward: {
      const auto gradients = fresh_gradients(event.unit);
      family_->backward(block, compute_weights(event), gradients, batch_, context, stream(block), saved(), d_stream,
                        scratch, accumulate && !step_.has_buffer("block gradients"));
      if (!step_.sharded) settle_gradients(event.unit, accumulate);
      break;
    }
    case EventKind::kEmbedBackward:
      family_->embed_backward(fresh_gradients(0), batch_, context, d_stream, accumulate && !step_.sharded);
      break;
    case EventKind::kReduce:
      if (event.last_micro_step_only && !last) break;
      reduce(event.unit, accumulate);
      break;
    case EventKind::kClip:
    case EventKind::kOptimizer: break;  // measure_gradients() and update()
  }
}

// Stage 0 computing in a narrower format: a block's fresh gradients join those that are kept.
void Engine::settle_gradients(int unit, bool accumulate) {
  const auto& precision = step_.sizes.precision;
  if (unit == 0 || !step_.has_buffer("block gradients")) return;
  const auto elements = step_.units[static_cast<std::size_t>(unit)].elements;
  auto* kept = held("gradients", unit, precision.gradients);
  if (accumulate)
    kernels_->add_cast(region("block gradients").data(), kernel_type(precision.compute), kept,
                       kernel_type(precision.gradients), elements);
  else
    kernels_->cast(region("block gradients").data(), kernel_type(precision.compute), kept,
                   kernel_type(precision.gradients), elements);
}

void Engine::reduce(int unit, bool accumulate) {
  const auto& precision = step_.sizes.precision;
  const auto& parts = step_.units[static_cast<std::size_t>(unit)];
  auto* kept = held("gradients", unit, precision.gradients);
  const auto type = comm_type(precision.gradients);
  if (!step_.sharded) {
    collective_.all_reduce(kept, parts.elements, type);
    return;
  }
  const auto fresh = fresh_gradients(unit);
  const auto fresh_type = fresh.type == kernels::Type::kFp32 ? comm::Type::kFp32 : comm::Type::kBf16;
  if (!accumulate) {
    collective_.reduce_scatter(fresh.data, fresh_type, kept, type, parts.shard_elements);
    return;
  }
  auto* reduced = region("reduced").data();
  collective_.reduce_scatter(fresh.data, fresh_type, reduced, type, parts.shard_elements);
  kernels_->add_cast(reduced, kernel_type(precision.gradients), kept, kernel_type(precision.gradients),
                     parts.shard_elements);
}

double Engine::micro_step(const MicroBatch& batch, std::int64_t step, std::int64_t micro_step, std::int64_t micro_steps,
                          double scale) {
  take_batch(batch);
  collective_.set_step(step);
  const models::StepContext context{seed_, step, true};
  for (const auto& event : step_.micro) {
    const auto start = std::chrono::steady_clock::now();
    run(event, context, true, scale, micro_step > 0, micro_step + 1 == micro_steps);
    if (watch_) watch_(event, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return loss_;
}

double Engine::evaluate(const MicroBatch& batch) {
  take_batch(batch);
  const models::StepContext context{seed_, 0, false};
  for (const auto& event : step_.micro) {
    run(event, context, false, 0, false, false);
    if (event.kind == EventKind::kLoss) break;
  }
  return loss_;
}

void Engine::logits(const MicroBatch& batch, const TakeLogits& take) {
  take_batch(batch);
  const models::StepContext context{seed_, 0, false};
  const auto length = step_.sizes.sequence, vocabulary = step_.sizes.geometry.vocabulary;
  std::vector<float> values;
  for (const auto& event : step_.micro) {
    if (event.kind != EventKind::kLoss) {
      run(event, context, false, 0, false, false);
      continue;
    }
    const auto weights = compute_weights(event);
    const auto* last = stream(static_cast<int>(step_.units.size()) - 1);
    for (std::int64_t row = 0; row < static_cast<std::int64_t>(batch.rows.size()); ++row)
      for (std::int64_t first = 0; first < length; first += step_.sizes.loss_rows) {
        const auto n = std::min(step_.sizes.loss_rows, length - first);
        const void* scores = family_->logits(weights, last, row * length + first, n, region("scratch").as<char>());
        values.resize(static_cast<std::size_t>(n * vocabulary));
        fetch(scores, step_.sizes.precision.compute, values.data(), n * vocabulary);
        take(row, first, n, values.data());
      }
    break;
  }
}

Gradients Engine::measure_gradients() {
  const auto type = step_.sizes.precision.gradients;
  double squares = 0;
  for (std::size_t unit = 0; unit < step_.units.size(); ++unit)
    squares += kernels_->sum_of_squares(held("gradients", static_cast<int>(unit), type), kernel_type(type),
                                        step_.held_elements(step_.units[unit]));
  Gradients result;
  if (!std::isfinite(squares)) {
    const auto first = step_.sharded ? static_cast<std::int64_t>(collective_.rank()) : 0;
    for (std::size_t u = 0; u < step_.units.size() && result.where.empty(); ++u) {
      const auto& unit = step_.units[u];
      const auto begin = step_.sharded ? first * unit.shard_elements : 0, end = begin + step_.held_elements(unit);
      for (const auto& slice : unit.slices) {
        const auto from = std::max(begin, slice.offset), to = std::min(end, slice.offset + slice.elements);
        if (from >= to) continue;
        const auto* at = held("gradients", static_cast<int>(u), type) + (from - begin) * width_of(type);
        if (!std::isfinite(kernels_->sum_of_squares(at, kernel_type(type), to - from))) {
          result.where = slice.name;
          break;
        }
      }
    }
  }
  if (step_.sharded) squares = collective_.sum(squares);
  result.norm = std::sqrt(squares);
  return result;
}

void Engine::update(const OptimizerSettings& settings, std::int64_t step, double norm) {
  const auto& precision = step_.sizes.precision;
  kernels::AdamW adamw{settings.learning_rate, settings.beta1, settings.beta2, settings.epsilon, 0, step, 1};
  if (settings.max_grad_norm > 0 && norm > settings.max_grad_norm)
    adamw.gradient_scale = settings.max_grad_norm / (norm + 1e-6);
  for (const auto& event : step_.update) {
    if (event.kind != EventKind::kOptimizer) continue;
    const auto start = std::chrono::steady_clock::now();
    const auto& unit = step_.units[static_cast<std::size_t>(event.unit)];
    const auto begin = step_.sharded ? collective_.rank() * unit.shard_elements : 0,
               end = begin + step_.held_elements(unit);
    auto at = [&](const char* buffer, job::DType type, std::int64_t element) {
      return held(buffer, event.unit, type) + (element - begin) * width_of(type);
    };
    for (std::size_t s = 0; s < unit.slices.size();) {
      // Neighbours that decay alike are updated together.
      const auto from = std::max(begin, unit.slices[s].offset);
      const bool decays = unit.slices[s].decays;
      auto until = unit.slices[s].offset + unit.slices[s].elements;
      for (++s; s < unit.slices.size() && unit.slices[s].decays == decays; ++s)
        until = unit.slices[s].offset + unit.slices[s].elements;
      until = std::min(end, until);
      if (from >= until) continue;
      adamw.weight_decay = decays ? settings.weight_decay : 0;
      const bool copy = step_.has_buffer("compute parameters");
      kernels_->adamw(adamw, at("parameters", precision.parameters, from), kernel_type(precision.parameters),
                      at("gradients", precision.gradients, from), kernel_type(precision.gradients),
                      at("exp_avg", precision.states, from), at("exp_avg_sq", precision.states, from),
                      kernel_type(precision.states), copy ? at("compute parameters", precision.compute, from) : nullptr,
                      kernel_type(precision.compute), until - from);
    }
    if (watch_) watch_(event, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

void Engine::refresh_compute_copy(int unit) {
  if (!step_.has_buffer("compute parameters")) return;
  const auto& precision = step_.sizes.precision;
  kernels_->cast(held("parameters", unit, precision.parameters), kernel_type(precision.parameters),
                 held("compute parameters", unit, precision.compute), kernel_type(precision.compute),
                 step_.held_elements(step_.units[static_cast<std::size_t>(unit)]));
}

}  // namespace shardfit::engine
