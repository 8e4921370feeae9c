#include "selector/memory/levers.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <nlohmann/json.hpp>

#include "selector/model/model.hpp"

namespace shardfit::memory {
namespace {

using job::Place;
using Reshard = job::Sharding::Reshard;

std::string quoted(const std::string& word) { return "\"" + word + "\""; }
const char* word(Place p) { return p == Place::kCpu ? "\"cpu\"" : p == Place::kNvme ? "\"nvme\"" : "\"none\""; }

std::string checkpointing_word(const job::Checkpointing& c) {
  if (c.every > 1) return fmt::format("{{\"every\": {}}}", c.every);
  return quoted(c.kind);
}

void set_checkpointing(job::Plan& p, const std::string& kind, std::int64_t every) {
  const auto reentrant = p.checkpointing.reentrant;
  p.checkpointing = {};
  p.checkpointing.kind = kind;
  p.checkpointing.every = every;
  p.checkpointing.reentrant = reentrant;
  p.checkpointing.stated = true;
}

// Micro batch and accumulation so that the sequences a rank sees in a step stay the same; false where that cannot be.
bool set_micro_batch(job::Plan& p, std::int64_t micro) {
  const std::int64_t sequences = p.micro_batch * p.gradient_accumulation;
  if (micro < 1 || sequences % micro != 0) return false;
  p.micro_batch = micro;
  p.gradient_accumulation = sequences / micro;
  return true;
}

nlohmann::json& zero_section(job::Plan& p) { return p.deepspeed["zero_optimization"]; }

std::string zero_value(const job::Plan& p, const char* key, const char* fallback) {
  const auto z = p.deepspeed.find("zero_optimization");
  if (z == p.deepspeed.end() || !z->is_object() || !z->contains(key)) return fallback;
  return (*z)[key].dump();
}

class Levers {
 public:
  Levers(const job::Job& job, const job::Plan& plan) : job_(job), plan_(plan) {}

  void add(const std::string& name, int rank, const std::string& key, std::string from, std::string to, const std::function<bool(job::Job&, job::Plan&)>& change) {
    Lever lever{name, rank, key, std::move(from), std::move(to), job_, plan_};
    if (lever.from != lever.to && change(lever.job, lever.plan)) list_.push_back(std::move(lever));
  }
  std::vector<Lever> take() {
    std::stable_sort(list_.begin(), list_.end(), [](const Lever& a, const Lever& b) { return a.rank < b.rank; });
    return std::move(list_);
  }

 private:
  const job::Job& job_;
  const job::Plan& plan_;
  std::vector<Lever> list_;
};

void code_levers(Levers& levers, const job::Job& job, const job::Plan& plan, const std::string& framework) {
  if (plan.accumulate_without_sync && plan.gradient_accumulation > 1)
    levers.add("accumulation", 1, "/plan/accumulate_without_sync", "true", "false", [](job::Job&, job::Plan& p) {
      p.accumulate_without_sync = false;
      return true;
    });
  if (framework != "shardfit" && framework != "megatron") {
    const bool torch_optimizer = (job.optimizer.name == "adamw" || job.optimizer.name == "adam") && !job.optimizer.in_backward && plan.offload.optimizer == Place::kNone &&
                                 !(job.optimizer.states && job::bytes_of(*job.optimizer.states) < 2);
    if (torch_optimizer && framework != "deepspeed" && (!job.optimizer.implementation || *job.optimizer.implementation != "fused"))
      levers.add("optimizer kernel", 0, "/job/optimizer/implementation", job.optimizer.implementation ? quoted(*job.optimizer.implementation) : "the default", "\"fused\"",
                 [](job::Job& j, job::Plan&) {
                   j.optimizer.implementation = "fused";
                   return true;
                 });
    if (job.loss.kind == "plain" || job.loss.kind == "fused") {
      levers.add("loss", 1, "/job/loss", quoted(job.loss.kind), "\"fused_linear\"", [](job::Job& j, job::Plan&) {
        j.loss = {};
        j.loss.kind = "fused_linear";
        return true;
      });
    }
  }
  if (!plan.expandable_segments && framework != "shardfit")
    levers.add("allocator", 0, "/plan/allocator/expandable_segments", "false", "true", [](job::Job&, job::Plan& p) { return p.expandable_segments = true; });
}

void activation_levers(Levers& levers, const job::Plan& plan, const std::string& framework) {
  const std::string now = checkpointing_word(plan.checkpointing);
  const bool none = plan.checkpointing.kind == "none" && plan.checkpointing.every <= 1;
  const bool full = plan.checkpointing.kind == "full" && plan.checkpointing.every <= 1;
  const auto checkpoint = [&](int rank, const std::string& kind, std::int64_t every) {
    job::Checkpointing c;
    c.kind = kind;
    c.every = every;
    levers.add("checkpointing", rank, "/plan/activation_checkpointing", now, checkpointing_word(c), [=](job::Job&, job::Plan& p) {
      set_checkpointing(p, kind, every);
      return true;
    });
  };
  if (none && (framework == "fsdp2" || framework == "megatron")) checkpoint(3, "selective_op", 1);
  if (none && framework != "shardfit") checkpoint(4, "full", 2);
  if (!full) checkpoint(5, "full", 1);
  for (std::int64_t micro = plan.micro_batch / 2; micro >= 1; micro /= 2)
    levers.add("micro batch", 4, "/plan/micro_batch", fmt::format("{}", plan.micro_batch), fmt::format("{}", micro), [=](job::Job&, job::Plan& p) { return set_micro_batch(p, micro); });
  if (!none && plan.offload.activations == Place::kNone && framework != "shardfit")
    levers.add("activation offload", 6, "/plan/offload/activations", "\"none\"", "\"cpu\"", [](job::Job&, job::Plan& p) {
      p.offload.activations = Place::kCpu;
      return true;
    });
}

void gather_levers(Levers& levers, const job::Plan& plan, const std::string& framework) {
  const bool sharded = plan.sharding.stage == 3 && plan.sharding.shard_degree > 1;
  if (sharded && (plan.sharding.reshard_after_forward == Reshard::kFalse || plan.sharding.reshard_after_forward == Reshard::kOver))
    levers.add("reshard", 3, "/plan/sharding/reshard_after_forward", plan.sharding.reshard_after_forward == Reshard::kFalse ? "false" : fmt::format("{}", plan.sharding.reshard_over),
               "true", [](job::Job&, job::Plan& p) {
                 p.sharding.reshard_after_forward = Reshard::kTrue;
                 p.sharding.reshard_stated = true;
                 return true;
               });
  if (sharded && plan.schedule.unit_blocks.value_or(1) > 1)
    levers.add("unit", 2, "/plan/schedule/unit", fmt::format("{}", *plan.schedule.unit_blocks), "\"block\"", [](job::Job&, job::Plan& p) {
      p.schedule.unit_blocks = 1;
      return true;
    });
  if (sharded && framework != "deepspeed" && plan.schedule.prefetch_blocks.value_or(1) > 0)
    levers.add("prefetch", 3, "/plan/schedule/prefetch_blocks", fmt::format("{}", plan.schedule.prefetch_blocks.value_or(1)), "0", [](job::Job&, job::Plan& p) {
      p.schedule.prefetch_blocks = 0;
      return true;
    });
  if (framework != "deepspeed" || plan.sharding.stage < 1) return;
  const auto bucket = [&](const char* key, const char* fallback, std::int64_t value, int rank) {
    levers.add(key, rank, std::string("/plan/deepspeed/zero_optimization/") + key, zero_value(plan, key, fallback), fmt::format("{}", value), [=](job::Job&, job::Plan& p) {
      const auto z = p.deepspeed.find("zero_optimization");
      if (z != p.deepspeed.end() && z->is_object() && z->contains(key) && (*z)[key].is_number() && (*z)[key].get<double>() <= static_cast<double>(value)) return false;
      zero_section(p)[key] = value;
      return true;
    });
  };
  bucket("reduce_bucket_size", "the default", 50000000, 2);
  if (plan.sharding.stage < 3) bucket("allgather_bucket_size", "the default", 50000000, 2);
  if (plan.sharding.stage == 3) {
    bucket("stage3_max_live_parameters", "the default", 100000000, 3);
    bucket("stage3_max_reuse_distance", "the default", 100000000, 3);
  }
}

void stage_levers(Levers& levers, const job::Job& job, const job::Plan& plan, const std::string& framework) {
  const bool zero = framework == "deepspeed" || framework == "other";
  const std::int64_t ranks = plan.data_parallel();
  if (framework == "ddp" && ranks > 1)   // whole replicas cannot be sharded: the same loop under FSDP can
    levers.add("framework", 5, "/job/framework/name", "\"ddp\"", "\"fsdp2\" (sharding stage 3)", [&](job::Job& j, job::Plan& p) {
      j.framework.name = "fsdp2";
      j.framework.version.clear();
      p.sharding = {};
      p.sharding.stage = 3;
      p.sharding.shard_degree = ranks;
      p.sharding.replicate_degree = 1;
      return true;
    });
  if (framework == "megatron" && ranks > 1 && plan.sharding.stage == 0)
    levers.add("stage", 1, "/plan/sharding/stage", "0", "1 (distributed optimizer)", [&](job::Job&, job::Plan& p) {
      p.sharding.stage = 1;
      p.sharding.shard_degree = ranks;
      p.sharding.replicate_degree = 1;
      return true;
    });
  if (framework == "megatron" && plan.tensor_parallel > 1 && !plan.sequence_parallel)
    levers.add("sequence parallel", 0, "/plan/sequence_parallel", "false", "true", [](job::Job&, job::Plan& p) { return p.sequence_parallel = true; });
  const bool divides = framework == "megatron" || (framework == "fsdp2" && (job.framework.trainer.empty() || job.framework.trainer == "torchtitan"));
  // Ranks of data parallelism become ranks that share each layer (within a node) or each sequence; accumulation makes up for them.
  const auto shared = [&](const char* name, int rank, const char* key, std::int64_t now, std::int64_t job::Plan::* degree) {
    for (const std::int64_t times : {2, 4, 8}) {
      const bool sharded = plan.sharding.shard_degree % times == 0, replicated = plan.sharding.replicate_degree % times == 0;
      if (!divides || (!sharded && !replicated) || (degree == &job::Plan::tensor_parallel && now * times > plan.gpus_per_node)) continue;
      levers.add(name, rank, key, fmt::format("{}", now), fmt::format("{}", now * times), [=](job::Job&, job::Plan& p) {
        p.*degree *= times;
        (sharded ? p.sharding.shard_degree : p.sharding.replicate_degree) /= times;
        p.gradient_accumulation *= times;
        if (degree == &job::Plan::tensor_parallel) p.sequence_parallel = true;
        return true;
      });
    }
  };
  if (job.sequence_length >= 8192) shared("context parallel", 6, "/plan/context_parallel", plan.context_parallel, &job::Plan::context_parallel);
  for (const std::int64_t times : {2, 4, 8}) {   // stages of a pipeline
    if (framework != "megatron" || plan.sharding.shard_degree % times != 0) continue;
    levers.add("pipeline parallel", 7, "/plan/pipeline_parallel/degree", fmt::format("{}", plan.pipeline.degree), fmt::format("{}", plan.pipeline.degree * times), [=](job::Job&, job::Plan& p) {
      p.pipeline.degree *= times;
      p.sharding.shard_degree /= times;
      p.gradient_accumulation *= times;
      return true;
    });
  }
  shared("tensor parallel", 7, "/plan/tensor_parallel", plan.tensor_parallel, &job::Plan::tensor_parallel);
  if (ranks < 2 || (!zero && framework != "shardfit")) return;
  for (const int stage : {1, 2, 3}) {
    if (stage <= plan.sharding.stage || (framework == "shardfit" && stage != 3)) continue;
    levers.add("stage", stage == 3 ? 4 : 3, "/plan/sharding/stage", fmt::format("{}", plan.sharding.stage), fmt::format("{}", stage), [=](job::Job&, job::Plan& p) {
      p.sharding.stage = stage;
      if (p.sharding.shard_degree == 1) {
        p.sharding.shard_degree = ranks;
        p.sharding.replicate_degree = 1;
      }
      if (const auto z = p.deepspeed.find("zero_optimization"); z != p.deepspeed.end() && z->is_object() && z->contains("stage")) (*z)["stage"] = stage;
      return true;
    });
  }
  if (plan.sharding.stage >= 1 && plan.sharding.replicate_degree > 1)
    levers.add("stage", 4, "/plan/sharding/shard_degree", fmt::format("{}", plan.sharding.shard_degree), fmt::format("{}", ranks), [=](job::Job&, job::Plan& p) {
      p.sharding.shard_degree = ranks;
      p.sharding.replicate_degree = 1;
      return true;
    });
}

void offload_levers(Levers& levers, const job::Job& job, const job::Plan& plan, const std::string& framework) {
  const auto offload = [&](int rank, const char* key, Place from, Place to, const std::function<void(job::Plan&)>& change) {
    levers.add(std::string("offload ") + key, rank, std::string("/plan/offload/") + key, word(from), word(to), [=](job::Job&, job::Plan& p) {
      change(p);
      return true;
    });
  };
  const bool fsdp = framework == "fsdp1" || framework == "fsdp2", zero = framework == "deepspeed" || framework == "other";
  if (fsdp && plan.sharding.stage >= 2 && plan.offload.parameters == Place::kNone)
    offload(8, "parameters", Place::kNone, Place::kCpu, [](job::Plan& p) { p.offload.parameters = p.offload.gradients = p.offload.optimizer = Place::kCpu; });
  if (!zero) return;
  // From the host on to drives, and back to the device in part: for hosts that are short.
  for (const auto& [part, place] : {std::pair{"optimizer", &job::Offload::optimizer}, std::pair{"parameters", &job::Offload::parameters}})
    if (plan.offload.*place == Place::kCpu && (plan.sharding.stage == 3 || place == &job::Offload::optimizer))
      offload(8, part, Place::kCpu, Place::kNvme, [place = place](job::Plan& p) {
        p.offload.*place = Place::kNvme;
        if (p.offload.nvme_path.empty()) p.offload.nvme_path = "/local_nvme";
      });
  if (plan.offload.optimizer == Place::kCpu && plan.sharding.stage == 3 && plan.offload.optimizer_fraction > 0.25)
    for (const double fraction : {0.75, 0.5, 0.25})
      levers.add("offload optimizer", 3, "/plan/offload/optimizer_fraction", fmt::format("{}", plan.offload.optimizer_fraction), fmt::format("{}", fraction), [=](job::Job&, job::Plan& p) {
        p.offload.optimizer_fraction = fraction;
        return fraction < plan.offload.optimizer_fraction;
      });
  if (plan.offload.parameters == Place::kCpu)
    offload(3, "parameters", Place::kCpu, Place::kNone, [](job::Plan& p) { p.offload.parameters = Place::kNone; });
  const bool trains_much = job.method.kind == job::MethodKind::kFull || job.method.kind == job::MethodKind::kPartial;
  if (trains_much && plan.offload.optimizer == Place::kNone) {
    if (plan.sharding.stage == 3)
      for (const double fraction : {0.25, 0.5, 0.75})
        levers.add("offload optimizer", 6, "/plan/offload/optimizer_fraction", "0", fmt::format("{}", fraction), [=](job::Job&, job::Plan& p) {
          p.offload.optimizer = Place::kCpu;
          p.offload.optimizer_fraction = fraction;
          return true;
        });
    offload(7, "optimizer", Place::kNone, Place::kCpu, [](job::Plan& p) { p.offload.optimizer = Place::kCpu; });
  }
  if (plan.sharding.stage == 3 && plan.offload.parameters == Place::kNone) {
    offload(7, "parameters", Place::kNone, Place::kCpu, [](job::Plan& p) { p.offload.parameters = Place::kCpu; });
    if (trains_much && plan.offload.optimizer == Place::kNone)
      levers.add("offload optimizer", 8, "/plan/offload", "parameters and optimizer on the device", "parameters and optimizer \"cpu\"", [](job::Job&, job::Plan& p) {
        p.offload.parameters = p.offload.optimizer = Place::kCpu;
        return true;
      });
  }
}

// Twice or four times the nodes (or GPUs of one node that is not known to be whole), the ranks going into sharding where there is some.
void hardware_levers(Levers& levers, const job::Job& job, const job::Plan& plan, const std::string& framework) {
  if (plan.sharding.stage < 1 && plan.data_parallel() > 1 && framework != "megatron") return;  // replicas more free nothing
  if (framework == "ddp") return;   // stage_levers has FSDP for replicas; a single GPU's loop has no ranks
  const std::int64_t sequences = plan.micro_batch * plan.gradient_accumulation;
  for (const std::int64_t times : {2, 4, 8}) {
    const bool keeps_batch = sequences % times == 0;
    if (!keeps_batch && (job.global_batch_sequences > 0 || job.global_batch_tokens)) continue;
    levers.add("ranks", 9, "/plan/nodes", fmt::format("{}", plan.nodes), fmt::format("{}{}", plan.nodes * times, keeps_batch ? "" : " (with as much larger a global batch)"),
               [=](job::Job&, job::Plan& p) {
                 p.nodes *= times;
                 if (p.sharding.stage == 0) {
                   p.sharding.stage = framework == "megatron" ? 1 : 3;
                   p.sharding.shard_degree = p.sharding.replicate_degree * p.sharding.shard_degree;
                   p.sharding.replicate_degree = 1;
                 }
                 p.sharding.shard_degree *= times;
                 if (p.gradient_accumulation % times == 0) {
                   p.gradient_accumulation /= times;
                 } else if (keeps_batch) {
                   p.gradient_accumulation = 1;
                   p.micro_batch = sequences / times;
                 }
                 return true;
               });
  }
}

}  // namespace

std::vector<Lever> levers_of(const job::Job& job, const job::Plan& plan, const model::Model&) {
  Levers levers(job, plan);
  const std::string& framework = job.framework.name;
  code_levers(levers, job, plan, framework);
  gather_levers(levers, plan, framework);
  activation_levers(levers, plan, framework);
  stage_levers(levers, job, plan, framework);
  offload_levers(levers, job, plan, framework);
  hardware_levers(levers, job, plan, framework);
  return levers.take();
}

std::vector<Lever> hints_of(const job::Job& job, const job::Plan& plan) {
  Levers levers(job, plan);
  const bool full = job.method.kind == job::MethodKind::kFull, adam = job.optimizer.name == "adamw" || job.optimizer.name == "adam";
  const bool torch_states = !job.optimizer.states || job::bytes_of(*job.optimizer.states) >= 2;
  if (job.framework.name == "shardfit" || job.framework.name == "megatron") return {};
  if (full && adam && torch_states && plan.offload.optimizer == Place::kNone)
    levers.add("8-bit optimizer", 0, "/job/optimizer/states", "the framework's", "\"int8\"", [](job::Job& j, job::Plan&) {
      j.optimizer.states = job::DType::kInt8;
      j.optimizer.implementation.reset();
      return true;
    });
  if (job.sequence_length >= 2048)
    levers.add("sequence", 1, "/job/sequence_length", fmt::format("{}", job.sequence_length), fmt::format("{}", job.sequence_length / 2), [](job::Job& j, job::Plan&) {
      j.sequence_length /= 2;
      return true;
    });
  const auto adapters = [&](const char* kind, job::MethodKind method, int rank) {
    levers.add("method", rank, "/job/method", full ? "\"full\"" : "\"lora\"", quoted(kind) + " of rank 16 on all linear layers", [=](job::Job& j, job::Plan& p) {
      j.method = {};
      j.method.kind = method;
      j.method.rank = 16;
      j.method.alpha = 32;
      j.method.targets = {"all-linear"};
      if (method == job::MethodKind::kQlora) j.method.quantization = job::DType::kNf4;
      j.optimizer.states.reset();
      p.offload = {};
      return true;
    });
  };
  if (full) adapters("lora", job::MethodKind::kLora, 2);
  if (full || job.method.kind == job::MethodKind::kLora) adapters("qlora", job::MethodKind::kQlora, 3);
  return levers.take();
}

}  // namespace shardfit::memory
