#include "selector/time/gpu_step.hpp"

#include <algorithm>
#include <cmath>

#include "selector/time/block_time.hpp"
#include "selector/time/collectives.hpp"
#include "selector/time/optimizer_step.hpp"
#include "selector/time/range.hpp"

namespace shardfit::timing {
namespace {

using job::Place;
using Reshard = job::Sharding::Reshard;

// Fitted on tests/truth/time_visible.jsonl: Python, data loader and logging per micro-step and per step.
constexpr double kMicroStepSeconds = 12.4e-3, kStepSeconds = 20.6e-3;
// Copies of offloaded gradients under accumulation, DeepSpeed: add, not only copy.
constexpr double kAccumulatedGradients = 1.955;
constexpr double kContextExposed = 0.3;  // share of the K/V exchange that ring attention leaves visible
constexpr double kZenflow = 1.019;

double combine(double compute, double other, double p) {
  if (other <= 0) return compute;
  if (compute <= 0) return other;
  // (c^p + x^p)^(1/p), scaled by the larger so that no power overflows.
  const double large = std::max(compute, other), ratio = std::min(compute, other) / large;
  return large * std::pow(1 + std::pow(ratio, p), 1 / p);
}

double fourth_power(double x) { return x * x * x * x; }

// The fourth-power mean of roads that an engine overlaps: nearly the slowest, a little more where two are close.
double slowest(double a, double b, double c, double d) {
  const double large = std::max({a, b, c, d});
  if (large <= 0) return 0;
  return large *
         std::pow(fourth_power(a / large) + fourth_power(b / large) + fourth_power(c / large) + fourth_power(d / large),
                  0.25);
}

double at_least_one(std::int64_t n) { return static_cast<double>(std::max<std::int64_t>(n, 1)); }

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

int stage_of(const Work& work, const job::Plan& plan) {
  const bool fsdp = work.engine == Engine::kFsdp1 || work.engine == Engine::kFsdp2;
  return fsdp && plan.sharding.stage == 2 ? 3 : plan.sharding.stage;
}

// One step; each member function adds its part to `time`, in the order of `run`.
class GpuStep {
 public:
  GpuStep(const GpuSite& site, const job::Plan& plan)
      : site_(site),
        work_(site.work),
        plan_(plan),
        links_(links_of(plan, site.device, site.rates, site.host, site.interconnect)),
        stage_(stage_of(work_, plan)),
        share_(share_of(plan, stage_ == 3)) {}

  StepTime run() {
    compute_micro_step();
    count_parameters();
    exchange_between_operators();
    gather_and_reduce();
    copy_to_host();
    overlap();
    if (stages_ > 1) run_pipeline();
    else run_micro_steps();
    reduce_after_backward();
    update();
    if (plan_.offload.parameters == Place::kNvme && work_.engine == Engine::kDeepspeed)
      time_.nvme_exposed += work_.parameters / nodes_ * 2 / (drives_of(site_.host).read_gbs * 1e9 * 0.85) * steps_;
    time_.compute += kStepSeconds;
    time_.sigma = sigma();
    return time_;
  }

 private:
  bool recomputes_all() const { return share_.recompute == Share::Recompute::kFull; }
  double passes_again() const { return recomputes_all() ? 2 : 1; }
  bool sharded() const { return stage_ == 3; }

  // GPU work of one micro-step on one pipeline stage.
  void compute_micro_step() {
    double forward = 0, backward = 0, recompute = 0;
    for (const BlockWork& block : work_.blocks) {
      const Passes passes = block_seconds(work_, block, share_, site_.rates, site_.engine, site_.kernel);
      forward += block.count * passes.forward;
      backward += block.count * passes.backward;
      recompute += block.count * passes.recompute;
      attention_ += block.count * attention_forward_seconds(work_, block, share_, site_.rates, site_.kernel);
    }
    blocks_ = std::max(work_.layers, 1.0) / stages_;
    compute_forward_ = forward / stages_ * site_.rest.factor;
    compute_backward_ = (backward + recompute) / stages_ * site_.rest.factor;
    const Passes head = head_seconds(work_, share_, site_.rates);
    head_ = (head.forward + head.backward) * site_.rest.factor;
    tokens_ = share_.micro_batch * work_.decoder_sequence / context_;
    hidden_bytes_ = tokens_ * work_.hidden * 2;
  }

  // Parameters of this rank's tensor and pipeline part, before they are sharded.
  void count_parameters() {
    experts_here_ = work_.expert_parameters / tensor_ / stages_ / expert_;
    blocks_here_ =
        work_.block_parameters / tensor_ / stages_ - work_.expert_parameters / tensor_ / stages_ + experts_here_;
    all_here_ = blocks_here_ + (work_.parameters - work_.block_parameters) / tensor_ / (stages_ == 1 ? 1 : 2);
    trains_all_ = work_.trainable >= work_.parameters;
    trained_here_ = trains_all_ ? all_here_ : work_.trainable / tensor_ / stages_;
  }

  // Tensor, context and expert parallel traffic: between the operators, so added to their time.
  void exchange_between_operators() {
    if (tensor_ > 1) {
      const double link = tensor_ <= links_.gpus_per_node
                              ? links_.gpu
                              : std::min(links_.gpu, links_.node * 0.63 / links_.gpus_per_node);
      const double all_reduce = 2 * hidden_bytes_ * (tensor_ - 1) / tensor_ / link + 35e-6;
      const double exposed = flag(plan_.fsdp, "enable_async_tensor_parallel")
                                 ? engine_row(Engine::kMegatron).tensor_parallel_exposed
                                 : site_.engine.tensor_parallel_exposed;
      model_forward_ += exposed * all_reduce * 2 * blocks_;
      model_backward_ += exposed * all_reduce * 2 * blocks_ * passes_again();
    }
    if (context_ > 1) {
      const double link = tensor_ * context_ <= links_.gpus_per_node
                              ? links_.gpu
                              : std::min(links_.gpu, links_.node * 0.63 / links_.gpus_per_node);
      const double exchange =
          kContextExposed * blocks_ * 2 * tokens_ * work_.kv_width / tensor_ * 2 * (context_ - 1) / link;
      model_forward_ += exchange;
      model_backward_ += 2 * exchange;
    }
    if (expert_ > 1) {
      for (const BlockWork& block : work_.blocks)
        for (const Experts& e : block.experts) {
          const double exchange =
              2 * alltoall_seconds(links_, tokens_ * e.hidden * 2, expert_, e.top_k) * block.count / stages_;
          model_forward_ += exchange;
          model_backward_ += exchange * passes_again();
        }
    }
  }

  // Gathers and reductions of sharded states, beside compute.
  void gather_and_reduce() {
    if (sharded()) {
      gather_and_reduce_parameters();
    } else if (data_ > 1) {
      if (stage_ <= 1 || work_.engine == Engine::kMegatron) {
        after_backward_ = gather_seconds(links_, trained_here_ * work_.reduce_bytes, data_) +
                          gather_seconds(links_, trained_here_ * (stage_ >= 1 ? 2 : work_.reduce_bytes), data_);
      } else {  // ZeRO-2 reduces every micro-step
        network_backward_ = blocks_ * gather_seconds(links_, trained_here_ / blocks_ * work_.reduce_bytes, data_);
        after_backward_ = gather_seconds(links_, trained_here_ * 2, data_);
      }
    }
  }

  void gather_and_reduce_parameters() {
    const bool fsdp = work_.engine == Engine::kFsdp1 || work_.engine == Engine::kFsdp2;
    const bool gathers_again =
        !(fsdp && plan_.sharding.stage == 2) && plan_.sharding.reshard_after_forward != Reshard::kFalse;
    const double ranks = plan_.sharding.over_context_parallel ? shard_ * context_ : shard_;
    const double experts = expert_ > 1 ? experts_here_ : 0, expert_ranks = std::max(std::floor(ranks / expert_), 1.0);
    const auto gather = [&](double over) {
      return blocks_ * (gather_seconds(links_, (blocks_here_ - experts) / blocks_ * work_.gather_bytes, over) +
                        gather_seconds(links_, experts / blocks_ * work_.gather_bytes, std::min(expert_ranks, over)));
    };
    const double whole = gather(ranks);
    ring_ = ring_seconds(ranks, blocks_ * (gathers_again ? 3 : 2));
    network_forward_ = whole;
    if (!gathers_again && steps_ > 1) network_forward_ /= steps_;
    if (gathers_again)
      network_backward_ += plan_.sharding.reshard_after_forward == Reshard::kOver
                               ? gather(std::min(static_cast<double>(plan_.sharding.reshard_over), ranks))
                               : whole;
    double reduce =
        blocks_ *
        (gather_seconds(links_, (trained_here_ - (trains_all_ ? experts : 0)) / blocks_ * work_.reduce_bytes, ranks) +
         (trains_all_ ? gather_seconds(links_, experts / blocks_ * work_.reduce_bytes, expert_ranks) : 0));
    if (replicate_ > 1) reduce += 2 * gather_seconds(links_, trained_here_ / ranks * work_.reduce_bytes, replicate_, 1);
    network_backward_ += plan_.accumulate_without_sync ? reduce / steps_ : reduce;
  }

  // Copies to and from the host, beside compute.
  void copy_to_host() {
    const job::Offload& offload = plan_.offload;
    if (offload.parameters != Place::kNone) {
      const double copies =
          blocks_here_ * work_.gather_bytes / (work_.engine == Engine::kOther ? 1 : shard_) / links_.pcie;
      host_forward_ += copies;
      host_backward_ += copies;
    }
    if (offload.activations != Place::kNone) {
      const double copies = hidden_bytes_ * blocks_ / links_.pcie;
      host_forward_ += copies;
      host_backward_ += copies;
    }
    if (offload.gradients != Place::kNone && !work_.frozen) {
      const double copies =
          (work_.label.empty() ? trained_here_ * (work_.gradient_bytes >= 4 ? 4 : 2) / (stage_ >= 2 ? shard_ : 1)
                               : trained_here_ * 2) /
          links_.pcie;
      if (steps_ > 1 && work_.engine == Engine::kDeepspeed) host_serial_ += kAccumulatedGradients * copies;
      else host_backward_ += copies;
    }
  }

  void overlap() {
    const bool slow_box =
        links_.gpu < 40e9 && links_.gpus_per_node > 1 && shard_ > 1 && plan_.offload.gradients == Place::kNone;
    overlap_ = slow_box ? kPcieOverlap : site_.engine.overlap;
    const auto pass = [&](double compute, double model, double network, double copies) {
      const double base = compute + model, other = network + copies, exposed = combine(base, other, overlap_) - base;
      time_.compute += compute;
      time_.communication_exposed += model + (other > 0 ? exposed * network / other : 0);
      time_.pcie_exposed += other > 0 ? exposed * copies / other : 0;
      return base + exposed;
    };
    forward_ = pass(compute_forward_, model_forward_, network_forward_, host_forward_);
    backward_ = pass(compute_backward_, model_backward_, network_backward_, host_backward_);
  }

  void run_pipeline() {
    double virtual_stages = 1;
    if (plan_.pipeline.virtual_stages) virtual_stages = at_least_one(*plan_.pipeline.virtual_stages);
    else if (work_.engine == Engine::kMegatron)
      virtual_stages = std::clamp(std::floor(work_.layers / stages_), 1.0, 5.0);
    // The last stage carries the head unless embedding and head are counted as layers.
    const bool balanced = std::fmod(work_.layers + 2, stages_ * virtual_stages) == 0;
    const double head_here = balanced ? head_ / stages_ : head_;
    const double stage_seconds = forward_ + backward_ + head_here;
    time_.compute = (time_.compute + head_here) * steps_;
    time_.communication_exposed *= steps_;
    time_.pcie_exposed *= steps_;
    // The bubble: waiting for the other stages.
    time_.communication_exposed +=
        stage_seconds * (stages_ - 1) / virtual_stages +
        2 * stages_ * hidden_bytes_ / std::min(links_.gpu, links_.node / links_.gpus_per_node);
  }

  void run_micro_steps() {
    time_.compute = (time_.compute + head_ + kMicroStepSeconds) * steps_;
    time_.communication_exposed = (time_.communication_exposed + ring_) * steps_;
    time_.pcie_exposed = (time_.pcie_exposed + host_serial_) * steps_;
  }

  void reduce_after_backward() {
    if (after_backward_ <= 0) return;
    if (work_.engine == Engine::kDeepspeed)
      time_.communication_exposed += site_.engine.step_exposed * after_backward_ * (stage_ >= 2 ? 1 : 0.6);
    else
      time_.communication_exposed += std::max(combine(backward_, after_backward_, overlap_) - backward_,
                                              site_.engine.step_exposed * after_backward_);
  }

  void update() {
    const double optimizer_shard = stage_ >= 1 ? shard_ : 1;
    double local = trained_here_ / optimizer_shard;
    if (trains_all_ && expert_ > 1)
      local = (all_here_ - experts_here_) / optimizer_shard + experts_here_ / std::max(optimizer_shard / expert_, 1.0);
    const bool offloaded = plan_.offload.optimizer != Place::kNone && !work_.frozen;
    if (!offloaded) time_.compute += gpu_optimizer_seconds(work_, local, site_.rates);
    else if (work_.optimizer_swapped) update_swapped(local);
    else update_on_host(local);
  }

  // States travel, the update stays on the GPU: fp32 parameter and two moments in, and out again.
  void update_swapped(double local) {
    const double fraction = plan_.offload.optimizer_fraction;
    time_.compute += gpu_optimizer_seconds(work_, local, site_.rates);
    time_.pcie_exposed += local * fraction * 12 * 2 / links_.pcie;
    if (plan_.offload.optimizer != Place::kNvme) return;
    const Drives drives = drives_of(site_.host);
    time_.nvme_exposed +=
        std::max(0.0, nvme_optimizer_seconds(work_.trainable / nodes_ * fraction, drives.read_gbs, drives.write_gbs) -
                          time_.pcie_exposed);
  }

  void update_on_host(double local) {
    const double fraction = plan_.offload.optimizer_fraction;
    const double on_node = (stage_ >= 1 ? work_.trainable / nodes_ : work_.trainable) * fraction;
    if (fraction < 1) time_.compute += gpu_optimizer_seconds(work_, local * (1 - fraction), site_.rates);
    const auto* host = site_.host;
    const double ddr = ddr_gbs_of(host, site_.device, site_.rates.generation);
    const bool bound = flag(plan_.deepspeed, "bind_cores_to_rank") || (host && host->core_binding.value_or(false));
    const double cpu = cpu_optimizer_seconds(work_, on_node, links_.gpus_per_node, bound, ddr, host);
    double nvme = 0;
    if (plan_.offload.optimizer == Place::kNvme) {
      const Drives drives = drives_of(host);
      nvme = nvme_optimizer_seconds(on_node, drives.read_gbs, drives.write_gbs);
    }
    const Zenflow zenflow = zenflow_of(plan_);
    if (zenflow.on) {
      time_.cpu_optimizer += kZenflow * cpu * (1 / zenflow.interval + zenflow.top_k);
    } else if (plan_.offload.schedule == "overlapped" || plan_.offload.schedule == "adaptive") {
      overlap_update(cpu, nvme);
    } else {
      time_.cpu_optimizer += cpu;
      time_.nvme_exposed += std::max(nvme - cpu, 0.0);
      time_.pcie_exposed += on_node * 2 / (work_.engine == Engine::kOther ? 1 : links_.gpus_per_node) / links_.pcie;
    }
  }

  // GPU, host, drives and copies all at once: what the slowest adds is shared out by how slow each is.
  void overlap_update(double cpu, double nvme) {
    const double gpu = time_.compute + time_.communication_exposed + time_.pcie_exposed;
    const double copies = network_forward_ + network_backward_ + host_forward_ + host_backward_;
    const double total = slowest(gpu, cpu, nvme, copies), extra = total - gpu;
    const double weight = fourth_power(cpu / total) + fourth_power(nvme / total) + fourth_power(copies / total);
    if (weight > 0) {
      time_.cpu_optimizer += extra * fourth_power(cpu / total) / weight;
      time_.nvme_exposed += extra * fourth_power(nvme / total) / weight;
      time_.pcie_exposed += extra * fourth_power(copies / total) / weight;
    }
    time_.bound = cpu >= std::max({gpu, nvme, copies}) ? Bound::kCpuOptimizer
                  : nvme >= std::max(gpu, copies)      ? Bound::kNvme
                  : copies > gpu                       ? Bound::kPcie
                                                       : Bound::kCompute;
  }

  double sigma() const {
    const bool inferred = !site_.kernel.stated && work_.attention != AttentionWord::kEager;
    const double in_attention = attention_ / stages_ * (2 + passes_again()) * steps_;
    const double total =
        time_.compute + time_.communication_exposed + time_.pcie_exposed + time_.cpu_optimizer + time_.nvme_exposed;
    return range_sigma(work_, plan_, site_.rates, links_, site_.rest.measured,
                       inferred && total > 0 ? std::min(in_attention / total, 1.0) : 0);
  }

  const GpuSite& site_;
  const Work& work_;
  const job::Plan& plan_;
  const Links links_;
  const int stage_;
  const Share share_;
  const double tensor_ = static_cast<double>(plan_.tensor_parallel),
               context_ = static_cast<double>(plan_.context_parallel),
               expert_ = static_cast<double>(plan_.expert_parallel), stages_ = at_least_one(plan_.pipeline.degree),
               steps_ = at_least_one(plan_.gradient_accumulation),
               shard_ = static_cast<double>(plan_.sharding.shard_degree),
               replicate_ = static_cast<double>(plan_.sharding.replicate_degree), data_ = shard_ * replicate_,
               nodes_ = static_cast<double>(plan_.nodes);

  // Seconds of one micro-step on one stage.
  double compute_forward_ = 0, compute_backward_ = 0, head_ = 0, attention_ = 0;
  double model_forward_ = 0, model_backward_ = 0;      // tensor, context and expert parallel
  double network_forward_ = 0, network_backward_ = 0;  // gathers and reductions
  double host_forward_ = 0, host_backward_ = 0, host_serial_ = 0;
  double ring_ = 0, after_backward_ = 0, forward_ = 0, backward_ = 0;
  double blocks_ = 0, tokens_ = 0, hidden_bytes_ = 0, overlap_ = 1;
  double experts_here_ = 0, blocks_here_ = 0, all_here_ = 0, trained_here_ = 0;
  bool trains_all_ = false;
  StepTime time_;
};

}  // namespace

GpuSite::GpuSite(const Work& the_work, const hardware::Device& the_device, const pricing::Host* the_host,
                 const pricing::Interconnect* the_interconnect)
    : work(the_work),
      device(the_device),
      host(the_host),
      interconnect(the_interconnect),
      rates(device_rates(the_device)),
      engine(engine_row(the_work.engine)),
      kernel(attention_kernel(the_work, rates)),
      rest(leftover(the_work, rates.generation)) {}

StepTime gpu_step(const GpuSite& site, const job::Plan& plan) { return GpuStep(site, plan).run(); }

}  // namespace shardfit::timing
