// Puts a step together: blocks, then overlap with collectives and host copies, micro-steps and pipeline, reduction of
// the gradients, optimizer.
#include <algorithm>
#include <cmath>

#include "regions/base/error.hpp"
#include "selector/time/attention_kernels.hpp"
#include "selector/time/block_time.hpp"
#include "selector/time/collectives.hpp"
#include "selector/time/cpu_step.hpp"
#include "selector/time/engines.hpp"
#include "selector/time/optimizer_step.hpp"
#include "selector/time/range.hpp"
#include "selector/time/time.hpp"
#include "selector/time/work.hpp"

namespace shardfit::timing {
namespace {

using job::Place;

// Fitted on tests/truth/time_visible.jsonl: Python, data loader and logging per micro-step and per step.
constexpr double kMicroStepSeconds = 12.4e-3, kStepSeconds = 20.6e-3;
constexpr double kAccumulatedGradients =
    1.955;  // copies of offloaded gradients under accumulation, DeepSpeed: add, not only copy
constexpr double kContextExposed = 0.3;  // share of the K/V exchange that ring attention leaves visible
constexpr double kZenflow = 1.019;

double combine(double compute, double other, double p) {
  if (other <= 0) return compute;
  if (compute <= 0) return other;
  // (c^p + x^p)^(1/p), scaled by the larger so that no power overflows.
  const double large = std::max(compute, other), ratio = std::min(compute, other) / large;
  return large * std::pow(1 + std::pow(ratio, p), 1 / p);
}

Share share_of(const job::Plan& plan, bool sharded) {
  Share share;
  share.micro_batch = static_cast<double>(plan.micro_batch);
  share.tensor = static_cast<double>(plan.tensor_parallel);
  share.context = static_cast<double>(plan.context_parallel);
  share.expert = static_cast<double>(plan.expert_parallel);
  share.sequence_parallel = plan.sequence_parallel ? share.tensor : 1;
  share.nodes = static_cast<double>(plan.nodes);
  share.sharded = sharded;
  const job::Checkpointing& c = plan.checkpointing;
  if (c.kind == "full") share.recompute = Share::Recompute::kFull;
  else if (c.kind == "selective_op")
    share.recompute =
        c.save && *c.save == "all_compute" ? Share::Recompute::kSelectiveOpAllCompute : Share::Recompute::kSelectiveOp;
  else if (c.kind == "selective") share.recompute = Share::Recompute::kAttention;
  share.recompute_every = static_cast<double>(std::max<std::int64_t>(c.every, 1));
  return share;
}

double default_ddr_gbs(const hardware::Device& device, Generation generation) {
  const std::string_view key = device.key;
  const bool workstation = key.starts_with("rtx_a") || key.starts_with("rtx_6000") || key.starts_with("rtx_pro");
  if (key.starts_with("rtx_") && !workstation) return 60;  // desktops: two channels
  switch (generation) {
    case Generation::kVolta: return 256;
    case Generation::kAmpere: return 410;
    case Generation::kHopper: return 614;
    case Generation::kBlackwell:
    case Generation::kCdna: return 716;
    default: return 307;
  }
}

// What the host says of itself where it is a figure at all; 0 is unknown.
double stated_or(const std::optional<double>& value, double fallback) {
  return value && *value > 0 ? *value : fallback;
}

struct Drives {
  double read_gbs = 5, write_gbs = 4.5;
};
Drives drives_of(const pricing::Host* host) {
  Drives drives;
  if (!host || !host->nvme) return drives;
  drives.read_gbs = stated_or(host->nvme->read_gbs, drives.read_gbs);
  drives.write_gbs = stated_or(host->nvme->write_gbs, 0.9 * drives.read_gbs);
  return drives;
}

// The fourth-power mean of roads that an engine overlaps: nearly the slowest, a little more where two are close.
double slowest(double a, double b, double c, double d) {
  const auto fourth = [](double x) { return x * x * x * x; };
  const double large = std::max({a, b, c, d});
  if (large <= 0) return 0;
  return large * std::pow(fourth(a / large) + fourth(b / large) + fourth(c / large) + fourth(d / large), 0.25);
}

void finish(StepTime& time, const Work& work, const job::Plan& plan, double sigma) {
  time.step = time.compute + time.communication_exposed + time.pcie_exposed + time.cpu_optimizer + time.nvme_exposed +
              time.input;
  time.sigma = sigma;
  const double width = std::exp(kRangeWidth * sigma);
  time.low = time.step / width;
  time.high = time.step * width;
  const double sequences = static_cast<double>(plan.micro_batch) * static_cast<double>(plan.gradient_accumulation) *
                           static_cast<double>(plan.data_parallel());
  const double tokens = work.batch_tokens > 0 ? work.batch_tokens : sequences * work.sequence;
  time.tokens_per_second_per_gpu = time.step > 0 ? tokens / time.step / static_cast<double>(plan.gpus()) : 0;
}

Bound largest_part(const StepTime& time) {
  Bound bound = Bound::kCompute;
  double most = time.compute;
  const auto consider = [&](double seconds, Bound candidate) {
    if (seconds > most) {
      most = seconds;
      bound = candidate;
    }
  };
  consider(time.communication_exposed, Bound::kCommunication);
  consider(time.pcie_exposed, Bound::kPcie);
  consider(time.cpu_optimizer, Bound::kCpuOptimizer);
  consider(time.nvme_exposed, Bound::kNvme);
  consider(time.input, Bound::kInput);
  return bound;
}

struct Zenflow {
  bool on = false;
  double interval = 4, top_k = 0.1;
};

Zenflow zenflow_of(const job::Plan& plan) {
  Zenflow zenflow;
  if (plan.deepspeed.empty()) return zenflow;
  const auto zero = plan.deepspeed.find("zero_optimization");
  if (zero == plan.deepspeed.end() || !zero->is_object()) return zenflow;
  const auto found = zero->find("zenflow");
  if (found == zero->end() || !found->is_object()) return zenflow;
  zenflow.on = true;
  if (const auto i = found->find("update_interval"); i != found->end() && i->is_number() && i->get<double>() >= 1)
    zenflow.interval = i->get<double>();
  if (const auto k = found->find("topk_ratio"); k != found->end() && k->is_number())
    zenflow.top_k = std::clamp(k->get<double>(), 0.0, 1.0);
  return zenflow;
}

bool flag(const nlohmann::json& section, const char* key) {
  if (section.empty()) return false;
  const auto found = section.find(key);
  return found != section.end() && found->is_boolean() && found->get<bool>();
}

StepTime gpu_step(const Work& work, const job::Plan& plan, const hardware::Device& device, const pricing::Host* host,
                  const pricing::Interconnect* interconnect) {
  const DeviceRates rates = device_rates(device);
  const Links links = links_of(plan, device, rates, host, interconnect);
  const EngineRow& engine = engine_row(work.engine);
  const AttentionKernel kernel = attention_kernel(work, rates);
  const Leftover rest = leftover(work, rates.generation);

  const bool fsdp = work.engine == Engine::kFsdp1 || work.engine == Engine::kFsdp2;
  const int stage = fsdp && plan.sharding.stage == 2 ? 3 : plan.sharding.stage;
  const bool sharded = stage == 3;
  using Reshard = job::Sharding::Reshard;
  const bool gathers_again =
      !(fsdp && plan.sharding.stage == 2) && plan.sharding.reshard_after_forward != Reshard::kFalse;
  const double tensor = static_cast<double>(plan.tensor_parallel), context = static_cast<double>(plan.context_parallel),
               expert = static_cast<double>(plan.expert_parallel),
               stages = static_cast<double>(std::max<std::int64_t>(plan.pipeline.degree, 1)),
               steps = static_cast<double>(std::max<std::int64_t>(plan.gradient_accumulation, 1)),
               gpus = links.gpus_per_node, shard = static_cast<double>(plan.sharding.shard_degree),
               replicate = static_cast<double>(plan.sharding.replicate_degree), data = shard * replicate,
               nodes = static_cast<double>(plan.nodes);
  const Share share = share_of(plan, sharded);

  // ---- GPU work of one micro-step on one pipeline stage
  double forward = 0, backward = 0, recompute = 0, attention = 0;
  for (const BlockWork& block : work.blocks) {
    const Passes passes = block_seconds(work, block, share, rates, engine, kernel);
    forward += block.count * passes.forward;
    backward += block.count * passes.backward;
    recompute += block.count * passes.recompute;
    attention += block.count * attention_forward_seconds(work, block, share, rates, kernel);
  }
  const double blocks = std::max(work.layers, 1.0) / stages;
  const double compute_forward = forward / stages * rest.factor,
               compute_backward = (backward + recompute) / stages * rest.factor;
  const Passes head = head_seconds(work, share, rates);
  const double head_seconds_total = (head.forward + head.backward) * rest.factor;
  const double tokens = share.micro_batch * work.decoder_sequence / context;
  const double passes_again = share.recompute == Share::Recompute::kFull ? 2 : 1;

  // ---- tensor, context and expert parallel traffic: between the operators, so added to their time
  double model_forward = 0, model_backward = 0;
  const double hidden_bytes = tokens * work.hidden * 2;
  if (tensor > 1) {
    const double link = tensor <= gpus ? links.gpu : std::min(links.gpu, links.node * 0.63 / gpus);
    const double all_reduce = 2 * hidden_bytes * (tensor - 1) / tensor / link + 35e-6;
    const double exposed = flag(plan.fsdp, "enable_async_tensor_parallel")
                               ? engine_row(Engine::kMegatron).tensor_parallel_exposed
                               : engine.tensor_parallel_exposed;
    model_forward += exposed * all_reduce * 2 * blocks;
    model_backward += exposed * all_reduce * 2 * blocks * passes_again;
  }
  if (context > 1) {
    const double link = tensor * context <= gpus ? links.gpu : std::min(links.gpu, links.node * 0.63 / gpus);
    const double exchange = kContextExposed * blocks * 2 * tokens * work.kv_width / tensor * 2 * (context - 1) / link;
    model_forward += exchange;
    model_backward += 2 * exchange;
  }
  if (expert > 1) {
    for (const BlockWork& block : work.blocks)
      for (const Experts& e : block.experts) {
        const double exchange =
            2 * alltoall_seconds(links, tokens * e.hidden * 2, expert, e.top_k) * block.count / stages;
        model_forward += exchange;
        model_backward += exchange * passes_again;
      }
  }

  // ---- sharded states: gathers and reductions beside compute
  const double experts_here = work.expert_parameters / tensor / stages / expert;
  const double blocks_here =
      work.block_parameters / tensor / stages - work.expert_parameters / tensor / stages + experts_here;
  const double all_here = blocks_here + (work.parameters - work.block_parameters) / tensor / (stages == 1 ? 1 : 2);
  const double trained_here = work.trainable < work.parameters ? work.trainable / tensor / stages : all_here;
  const bool full = work.trainable >= work.parameters;
  double network_forward = 0, network_backward = 0, after_backward = 0, ring = 0;
  const double shard_ranks = sharded && plan.sharding.over_context_parallel ? shard * context : shard;
  if (sharded) {
    const double expert_shards = expert > 1 ? experts_here : 0,
                 expert_ranks = std::max(std::floor(shard_ranks / expert), 1.0);
    const auto gather = [&](double ranks, double per_node) {
      return blocks *
             (gather_seconds(links, (blocks_here - expert_shards) / blocks * work.gather_bytes, ranks, per_node) +
              gather_seconds(links, expert_shards / blocks * work.gather_bytes, std::min(expert_ranks, ranks),
                             per_node));
    };
    const double whole = gather(shard_ranks, 0);
    ring = ring_seconds(shard_ranks, blocks * (gathers_again ? 3 : 2));
    network_forward = whole;
    if (!gathers_again && steps > 1) network_forward /= steps;
    if (gathers_again)
      network_backward += plan.sharding.reshard_after_forward == Reshard::kOver
                              ? gather(std::min(static_cast<double>(plan.sharding.reshard_over), shard_ranks), 0)
                              : whole;
    double reduce =
        blocks *
        (gather_seconds(links, (trained_here - (full ? expert_shards : 0)) / blocks * work.reduce_bytes, shard_ranks) +
         (full ? gather_seconds(links, expert_shards / blocks * work.reduce_bytes, expert_ranks) : 0));
    if (replicate > 1)
      reduce += 2 * gather_seconds(links, trained_here / shard_ranks * work.reduce_bytes, replicate, 1);
    network_backward += plan.accumulate_without_sync ? reduce / steps : reduce;
  } else if (data > 1) {
    if (stage <= 1 || work.engine == Engine::kMegatron) {
      after_backward = gather_seconds(links, trained_here * work.reduce_bytes, data) +
                       gather_seconds(links, trained_here * (stage >= 1 ? 2 : work.reduce_bytes), data);
    } else {  // ZeRO-2 reduces every micro-step
      network_backward = blocks * gather_seconds(links, trained_here / blocks * work.reduce_bytes, data);
      after_backward = gather_seconds(links, trained_here * 2, data);
    }
  }

  // ---- host copies beside compute
  double host_forward = 0, host_backward = 0, host_serial = 0;
  if (plan.offload.parameters != Place::kNone) {
    const double copies = blocks_here * work.gather_bytes / (work.engine == Engine::kOther ? 1 : shard) / links.pcie;
    host_forward += copies;
    host_backward += copies;
  }
  if (plan.offload.activations != Place::kNone) {
    const double copies = hidden_bytes * blocks / links.pcie;
    host_forward += copies;
    host_backward += copies;
  }
  if (plan.offload.gradients != Place::kNone && !work.frozen) {
    const double copies =
        (work.label.empty() ? trained_here * (work.gradient_bytes >= 4 ? 4 : 2) / (stage >= 2 ? shard : 1)
                            : trained_here * 2) /
        links.pcie;
    if (steps > 1 && work.engine == Engine::kDeepspeed) host_serial += kAccumulatedGradients * copies;
    else host_backward += copies;
  }

  // ---- overlap
  const bool slow_box = links.gpu < 40e9 && gpus > 1 && shard > 1 && plan.offload.gradients == Place::kNone;
  const double p = slow_box ? kPcieOverlap : engine.overlap;
  StepTime time;
  const auto pass = [&](double compute, double model, double network, double copies) {
    const double base = compute + model, other = network + copies, exposed = combine(base, other, p) - base;
    time.compute += compute;
    time.communication_exposed += model + (other > 0 ? exposed * network / other : 0);
    time.pcie_exposed += other > 0 ? exposed * copies / other : 0;
    return base + exposed;
  };
  const double forward_total = pass(compute_forward, model_forward, network_forward, host_forward);
  const double backward_total = pass(compute_backward, model_backward, network_backward, host_backward);

  // ---- micro-steps or pipeline
  if (stages > 1) {
    double virtual_stages = 1;
    if (plan.pipeline.virtual_stages)
      virtual_stages = static_cast<double>(std::max<std::int64_t>(*plan.pipeline.virtual_stages, 1));
    else if (work.engine == Engine::kMegatron) virtual_stages = std::clamp(std::floor(work.layers / stages), 1.0, 5.0);
    // The last stage carries the head unless embedding and head are counted as layers.
    const bool balanced = std::fmod(work.layers + 2, stages * virtual_stages) == 0;
    const double head_here = balanced ? head_seconds_total / stages : head_seconds_total;
    const double stage_seconds = forward_total + backward_total + head_here;
    time.compute = (time.compute + head_here) * steps;
    time.communication_exposed *= steps;
    time.pcie_exposed *= steps;
    // The bubble: waiting for the other stages.
    time.communication_exposed += stage_seconds * (stages - 1) / virtual_stages +
                                  2 * stages * hidden_bytes / std::min(links.gpu, links.node / gpus);
  } else {
    time.compute = (time.compute + head_seconds_total + kMicroStepSeconds) * steps;
    time.communication_exposed = (time.communication_exposed + ring) * steps;
    time.pcie_exposed = (time.pcie_exposed + host_serial) * steps;
  }

  // ---- gradients after the last backward
  if (after_backward > 0) {
    if (work.engine == Engine::kDeepspeed) {
      time.communication_exposed += engine.step_exposed * after_backward * (stage >= 2 ? 1 : 0.6);
    } else {
      time.communication_exposed +=
          std::max(combine(backward_total, after_backward, p) - backward_total, engine.step_exposed * after_backward);
    }
  }

  // ---- optimizer
  const double optimizer_shard = stage >= 1 ? shard : 1;
  double local = trained_here / optimizer_shard;
  if (full && expert > 1)
    local = (all_here - experts_here) / optimizer_shard + experts_here / std::max(optimizer_shard / expert, 1.0);
  const bool offloaded = plan.offload.optimizer != Place::kNone && !work.frozen;
  double cpu = 0, nvme = 0;
  if (!offloaded) {
    time.compute += gpu_optimizer_seconds(work, local, rates);
  } else if (work.optimizer_swapped) {
    // States travel, the update stays on the GPU: fp32 parameter and two moments in, and out again.
    const double fraction = plan.offload.optimizer_fraction;
    time.compute += gpu_optimizer_seconds(work, local, rates);
    time.pcie_exposed += local * fraction * 12 * 2 / links.pcie;
    if (plan.offload.optimizer == Place::kNvme) {
      const Drives drives = drives_of(host);
      time.nvme_exposed +=
          std::max(0.0, nvme_optimizer_seconds(work.trainable / nodes * fraction, drives.read_gbs, drives.write_gbs) -
                            time.pcie_exposed);
    }
  } else {
    const double fraction = plan.offload.optimizer_fraction;
    const double on_node = (stage >= 1 ? work.trainable / nodes : work.trainable) * fraction;
    if (fraction < 1) time.compute += gpu_optimizer_seconds(work, local * (1 - fraction), rates);
    const double ddr = stated_or(host ? host->ddr_gbs : std::nullopt, default_ddr_gbs(device, rates.generation));
    const bool bound = flag(plan.deepspeed, "bind_cores_to_rank") || (host && host->core_binding.value_or(false));
    cpu = cpu_optimizer_seconds(work, on_node, gpus, bound, ddr, host);
    if (plan.offload.optimizer == Place::kNvme) {
      const Drives drives = drives_of(host);
      nvme = nvme_optimizer_seconds(on_node, drives.read_gbs, drives.write_gbs);
    }
    const double upload = on_node * 2 / (work.engine == Engine::kOther ? 1 : gpus) / links.pcie;
    const Zenflow zenflow = zenflow_of(plan);
    if (zenflow.on) {
      time.cpu_optimizer += kZenflow * cpu * (1 / zenflow.interval + zenflow.top_k);
    } else if (plan.offload.schedule == "overlapped" || plan.offload.schedule == "adaptive") {
      const double gpu = time.compute + time.communication_exposed + time.pcie_exposed;
      const double copies = network_forward + network_backward + host_forward + host_backward;
      const double total = slowest(gpu, cpu, nvme, copies), extra = total - gpu;
      const auto fourth = [](double x) { return x * x * x * x; };
      const double weight = fourth(cpu / total) + fourth(nvme / total) + fourth(copies / total);
      if (weight > 0) {
        time.cpu_optimizer += extra * fourth(cpu / total) / weight;
        time.nvme_exposed += extra * fourth(nvme / total) / weight;
        time.pcie_exposed += extra * fourth(copies / total) / weight;
      }
      time.bound = cpu >= std::max({gpu, nvme, copies}) ? Bound::kCpuOptimizer
                   : nvme >= std::max(gpu, copies)      ? Bound::kNvme
                   : copies > gpu                       ? Bound::kPcie
                                                        : Bound::kCompute;
    } else {
      time.cpu_optimizer += cpu;
      time.nvme_exposed += std::max(nvme - cpu, 0.0);
      time.pcie_exposed += upload;
    }
  }
  if (plan.offload.parameters == Place::kNvme && work.engine == Engine::kDeepspeed) {
    time.nvme_exposed += work.parameters / nodes * 2 / (drives_of(host).read_gbs * 1e9 * 0.85) * steps;
  }
  time.compute += kStepSeconds;

  const bool inferred = !kernel.stated && work.attention != AttentionWord::kEager;
  const double in_attention = attention / stages * (2 + passes_again) * steps;
  const double total =
      time.compute + time.communication_exposed + time.pcie_exposed + time.cpu_optimizer + time.nvme_exposed;
  const Bound overlapped_bound = time.bound;
  finish(time, work, plan,
         range_sigma(work, plan, rates, links, rest.measured,
                     inferred && total > 0 ? std::min(in_attention / total, 1.0) : 0));
  time.bound = overlapped_bound != Bound::kCompute ? overlapped_bound : largest_part(time);
  return time;
}

}  // namespace

const char* name_of(Bound bound) {
  switch (bound) {
    case Bound::kCompute: return "compute";
    case Bound::kCommunication: return "communication";
    case Bound::kPcie: return "pcie";
    case Bound::kCpuOptimizer: return "cpu_optimizer";
    case Bound::kNvme: return "nvme";
    case Bound::kInput: return "input";
  }
  return "compute";
}

StepTime step_time(const Work& work, const job::Plan& plan, const hardware::Device& device, const pricing::Host* host,
                   const pricing::Interconnect* interconnect, const Calibration* calibration) {
  if (!(work.sequence > 0))
    throw Error("missing_key", "/job/sequence_length", "sequence_length is not stated",
                "state the tokens of a sequence");
  if (!device.is_cpu) return gpu_step(work, plan, device, host, interconnect);
  if (!calibration)
    throw Error("not_calibrated", "/plan/gpu", "the device \"cpu\" has no measured rates on this machine",
                "run shardfit calibrate --quick");
  StepTime time = cpu_step(work, plan, *calibration, interconnect);
  const double sigma = time.sigma;
  finish(time, work, plan, sigma);
  time.bound = largest_part(time);
  time.calibrated = true;
  return time;
}

std::shared_ptr<const Work> prepare(const job::Job& job, const model::Model& model) {
  return std::make_shared<const Work>(make_work(job, model));
}

}  // namespace shardfit::timing
