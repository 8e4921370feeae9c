// How a job is run: the plan (docs/formats.md, "Plan").
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shardfit::job {

enum class Place { kNone, kCpu, kNvme };  // where an offloaded part lives

struct Sharding {
  int stage = 0;  // 0 data parallel, 1 optimizer states, 2 + gradients, 3 + parameters
  std::int64_t shard_degree = 1, replicate_degree = 1;
  enum class Reshard { kTrue, kAlways, kFalse, kOver } reshard_after_forward = Reshard::kTrue;
  std::int64_t reshard_over = 0;  // with kOver: re-shard over this many ranks
  bool reshard_stated = false;
  bool over_context_parallel = false;
};

struct Pipeline {
  std::int64_t degree = 1;
  std::string schedule = "1f1b";               // 1f1b | interleaved_1f1b | gpipe
  std::optional<std::int64_t> virtual_stages;  // absent = not stated
};

struct Checkpointing {
  std::string kind = "none";  // none | full | selective | selective_op
  std::int64_t every = 1;     // {"every": k}: each k-th block
  std::optional<bool> reentrant;
  std::vector<std::string> modules;
  std::optional<std::string> save;  // e.g. "all_compute"
  bool stated = false;
};

struct Offload {
  Place parameters = Place::kNone, gradients = Place::kNone, optimizer = Place::kNone, activations = Place::kNone;
  double optimizer_fraction = 1.0;
  std::string schedule = "serial";  // serial | overlapped | adaptive
  std::string nvme_path;
  std::optional<bool> pin;
  std::optional<std::int64_t> buffers, buffer_bytes, tile_elements;
  bool any() const {
    return parameters != Place::kNone || gradients != Place::kNone || optimizer != Place::kNone ||
           activations != Place::kNone;
  }
};

inline constexpr std::int64_t kNoWrap = std::int64_t{1} << 62;

struct GatherSchedule {                     // absent members: the framework's default
  std::optional<std::int64_t> unit_blocks;  // "unit": k; "block" = 1
  std::vector<std::string> unit_classes;    // "unit": ["LlamaDecoderLayer", ...]
  std::optional<std::int64_t> unit_least_parameters;  // fsdp: min_num_params of a wrapping by size; kNoWrap = all is one unit
  std::optional<std::int64_t> prefetch_blocks, prefetch_bytes, gather_bucket_bytes, reduce_bucket_bytes,
      keep_resident_below;
  std::optional<bool> limit_gathers;
};

struct Plan {
  std::string gpu;  // as written; resolve with hardware::find_device
  std::int64_t gpus_per_node = 1, nodes = 1;
  std::optional<double> cpus_per_gpu, device_memory_gib;
  Sharding sharding;
  std::int64_t tensor_parallel = 1, context_parallel = 1, expert_parallel = 1;
  bool sequence_parallel = false;
  Pipeline pipeline;
  std::int64_t micro_batch = 1, gradient_accumulation = 1;
  bool accumulate_without_sync = false;
  Checkpointing checkpointing;
  Offload offload;
  GatherSchedule schedule;
  bool expandable_segments = false;
  std::string checkpoint_load = "sharded";  // sharded | full_copy_per_gpu
  nlohmann::json deepspeed = nlohmann::json::object(), fsdp = nlohmann::json::object(),
                 megatron = nlohmann::json::object();
  std::vector<std::string> warnings;  // unknown keys of the three sections above

  std::int64_t gpus() const { return gpus_per_node * nodes; }
  std::int64_t data_parallel() const { return sharding.shard_degree * sharding.replicate_degree; }
};

// Throws Error naming key, value and remedy; checks that GPUs = shard x replicate x tensor x context x pipeline.
Plan parse_plan(const nlohmann::json& object, const std::string& where = "");
Plan read_plan(const std::string& file);
nlohmann::ordered_json to_json(const Plan& plan);  // every key, in the order of the format page
std::string plan_sha256(const Plan& plan);         // of the compact form of to_json

// Sequences an optimizer step: micro_batch x gradient_accumulation x data_parallel. Throws Error{out_of_range} where
// that overflows.
std::int64_t global_batch(const Plan& plan);

struct Job;
// The line for `assumed` where global_batch_tokens is no whole number of the plan's micro batches.
std::optional<std::string> batch_rounding(const Job& job, const Plan& plan);
// global_batch_sequences = micro_batch x accumulation x data_parallel must hold where the job states a batch; throws
// Error{batch_mismatch}.
void check_plan_against_job(const Job& job, const Plan& plan);

}  // namespace shardfit::job
