// The plans worth considering: which sharding, offload and parallelism each framework can run, over the sizes an offer
// sells.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pricing/offers.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"

namespace shardfit::model {
struct Model;
}

namespace shardfit::search {

// What the search may set for a framework.
struct Capabilities {
  std::vector<int> stages;
  bool keep_gathered = false;  // stage 3 with reshard_after_forward false
  bool hybrid = false;         // shard inside the node, replicate across nodes
  bool tensor_parallel = false, pipeline_parallel = false, expert_parallel = false;
  enum class OffloadStyle { kNone, kDeepSpeed, kFsdp } offload = OffloadStyle::kNone;
  std::vector<std::string> checkpointing;  // kinds
};
Capabilities capabilities_of(const std::string& framework);

// What shardfit-train runs of all that its plan format can say. The list itself is schedule::check_supported, which the
// runtime asks too: what is added there becomes a candidate here. Returns why not, or nullopt.
std::optional<std::string> runtime_refuses(const job::Job& job, const job::Plan& plan, const model::Model* model);

// (nodes, GPUs a node) that the offer sells, smallest first: fractions of one node by powers of two, then whole nodes.
std::vector<std::pair<std::int64_t, std::int64_t>> sizes_of(const pricing::Offer& offer,
                                                            std::optional<std::int64_t> max_nodes);

struct Shape {
  std::string gpu;  // key of the hardware table
  std::int64_t nodes = 1, gpus_per_node = 1;
  std::optional<double> device_memory_gib;  // gpu "cpu"
  bool nvme = false;                        // the host has drives to offload to
  auto operator<=>(const Shape&) const = default;
};
// Every candidate at that size: stage x micro batch x checkpointing x offload (x tensor, pipeline and expert
// parallelism for megatron). Needs the job's global batch. Deterministic.
std::vector<job::Plan> plans_for(const job::Job& job, const model::Model& model, const Shape& shape);

}  // namespace shardfit::search
