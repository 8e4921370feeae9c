#include "selector/memory/memory.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "regions/base/text.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/bounds.hpp"
#include "selector/memory/host.hpp"
#include "selector/memory/limits.hpp"
#include "selector/memory/overheads.hpp"
#include "selector/memory/own_runtime.hpp"
#include "selector/memory/pipeline.hpp"
#include "selector/memory/rank_replay.hpp"
#include "selector/memory/setup.hpp"
#include "selector/memory/trace.hpp"
#include "selector/schedule/step.hpp"
#include "selector/schedule/supported.hpp"

namespace shardfit::memory {
namespace {

Result estimate(const Request& asked, Trace* trace) {
  const auto numbered = numbered_layers(asked.job, asked.model);
  const Request request{asked.job, asked.plan, numbered ? *numbered : asked.model, asked.device, asked.host};
  const Setup s = make_setup(request);
  check_sizes(s);
  const ModelSizes sizes = model_sizes(s);
  const Overheads over = overheads_of(s);
  Result r;
  r.assumed = s.assumed;
  for (auto k : sizes.order) {
    r.parameters_total += sizes.blocks[static_cast<std::size_t>(k)].whole_elements;
    r.parameters_trainable += sizes.blocks[static_cast<std::size_t>(k)].whole_trainable;
  }
  for (const auto* u : {&sizes.embedding, &sizes.head}) {
    r.parameters_total += u->whole_elements;
    r.parameters_trainable += u->whole_trainable;
  }
  const double device = request.plan.device_memory_gib ? *request.plan.device_memory_gib * 1073741824.0 : request.device.memory_bytes();
  r.capacity_bytes = device > 0 ? std::max(0.0, device - static_cast<double>(request.device.is_cpu ? 0 : over.driver_reserve)) : 0;

  // On CPU ranks our runtime allocates what its schedule lists and nothing else: no replay is closer.
  const bool own = request.device.is_cpu && request.job.framework.name == "shardfit" && !schedule::why_unsupported(request.job, request.plan, &request.model);
  if (own) {
    const auto step = schedule::build_step(request.model, request.job, request.plan);
    r.memory = own_runtime_memory(step);
    const HostBytes host = host_bytes(s, sizes);
    r.memory.host = host.total;
    r.memory.host_pinned = host.pinned;
    r.memory.nvme = host.nvme;
    r.needed_low = static_cast<double>(r.memory.device_peak);
    r.needed_high = static_cast<double>(r.memory.device_peak_high);
    judge(request, s, host, r);
    if (trace) {
      trace->points = own_runtime_trace(step);
      trace->capacity_bytes = r.capacity_bytes;
      trace->result = r;
    }
    return r;
  }

  ReplayOptions options;
  // One GPU keeps every hole that a step leaves, and what the cache holds depends on each of them; sharded models are too many to try.
  options.every_block = trace != nullptr || (s.engine == Engine::kDdp && sizes.order.size() <= 48);
  if (r.capacity_bytes > 0) options.allocator_limit = std::max<std::int64_t>(1 << 28, static_cast<std::int64_t>(r.capacity_bytes) - over.total());
  const auto layouts = pipeline_stages(s, static_cast<std::int64_t>(sizes.order.size()));
  auto& m = r.memory;
  const Bounds bounds = bounds_of(s);
  r.known = bounds.known;
  std::int64_t high = 0, high_active = 0, low = 0;
  StageResult fullest;
  std::vector<TracePoint> points;
  bool ran_out = false;
  for (const auto& layout : layouts) {
    // stages between the first and the last differ from their neighbours by micro batches in flight only: those of long pipelines
    // lie between what is replayed
    points.clear();
    if (trace) options.trace = &points;
    StageResult stage = replay_rank(s, sizes, layout, options);
    if (s.longest_first) {
      // the batches that meet gradients and states are shorter: by half, calibrated over litgpt's six FSDP rows of that time
      Setup later = s;
      later.longest_first = false;
      later.sequence = std::max<std::int64_t>(1, s.sequence / 2);
      later.tokens = later.micro_batch * later.sequence;
      StageResult second = replay_rank(later, sizes, layout, {options.allocator_limit, options.every_block, nullptr});
      second.reserved_peak = std::max(second.reserved_peak, stage.reserved_peak);
      if (second.allocated_peak > stage.allocated_peak) stage = second;
    }
    if (options.allocator_limit > 0) stage.reserved_peak = std::min(stage.reserved_peak, std::max(options.allocator_limit, stage.allocated_peak));
    MemoryPeaks peaks;
    peaks.allocated_peak = stage.allocated_peak;
    peaks.reserved_peak = stage.reserved_peak;
    peaks.device_peak = stage.reserved_peak + over.total();
    if (s.pp > 1) m.by_stage.push_back(peaks);
    high = std::max(high, high_bound(bounds, stage, false));
    low = std::max(low, low_bound(bounds, stage));
    high_active = std::max(high_active, high_bound(bounds, stage, true));
    ran_out = ran_out || stage.ran_out;
    m.reserved_peak = std::max(m.reserved_peak, peaks.reserved_peak);
    if (stage.allocated_peak > fullest.allocated_peak) {
      fullest = stage;
      if (trace) trace->points = points;
    }
  }
  m.allocated_peak = fullest.allocated_peak;
  m.device_peak = m.reserved_peak + over.total();
  m.allocated_peak_high = std::max(high_active, m.allocated_peak);
  // The verdict rests on what is needed: cached segments are given back before a job runs out. What nvidia-smi shows may lie above
  // that, up to the capacity.
  high = std::max(high, m.allocated_peak) + over.most;
  r.needed_low = static_cast<double>(low + over.least);
  r.needed_high = static_cast<double>(high);
  m.device_peak_high = std::max(high, m.device_peak);
  m.phase = name_of(fullest.phase);
  std::int64_t rest = m.device_peak;
  for (std::size_t t = 0; t < kTerms; ++t)
    if (fullest.terms[t] > 0) {
      m.terms.push_back({std::string(name_of(static_cast<Term>(t))), fullest.terms[t]});
      rest -= fullest.terms[t];
    }
  if (over.context > 0) m.terms.push_back({"CUDA context", over.context});
  if (over.communicators > 0) m.terms.push_back({"communicators", over.communicators});
  rest -= over.total();
  if (rest > 0) m.terms.push_back({"cached by the allocator", rest});
  std::stable_sort(m.terms.begin(), m.terms.end(), [](const MemoryTerm& a, const MemoryTerm& b) { return a.bytes > b.bytes; });
  const HostBytes host = host_bytes(s, sizes);
  m.host = host.total;
  m.host_pinned = host.pinned;
  m.nvme = host.nvme;
  judge(request, s, host, r);
  if (!bounds.why.empty()) r.assumed.push_back(fmt::format("bounds of {:.0f} % ({})", bounds.activations * 100, bounds.why));
  if (trace) {
    trace->context_bytes = over.total();
    trace->capacity_bytes = r.capacity_bytes;
    trace->result = r;
  }
  return r;
}

// Nothing said about activation checkpointing: estimated without it. What does not fit so may have run with it.
void allow_checkpointing(const Request& request, Result& r) {
  if (r.fits != "no" || !checkpointing_unknown(request.job, request.plan)) return;
  job::Plan plan = request.plan;
  plan.checkpointing.kind = "full";
  const Result full = estimate({request.job, plan, request.model, request.device, request.host}, nullptr);
  if (full.fits == "no") return;
  r.fits = "unsure";
  r.why = fmt::format("activation_checkpointing is not stated: the device gives {}, the peak needs {} without it and {} with full recomputation", format_gib(r.capacity_bytes),
                      format_gib(r.needed_high), format_gib(full.needed_high));
}

}  // namespace

Result estimate_memory(const Request& request) {
  Result r = estimate(request, nullptr);
  allow_checkpointing(request, r);
  return r;
}

Trace trace_memory(const Request& request) {
  Trace trace;
  estimate(request, &trace);
  allow_checkpointing(request, trace.result);
  return trace;
}

}  // namespace shardfit::memory
