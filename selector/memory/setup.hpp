// One job on one plan with every default filled in: the numbers that the rules of selector/memory work with.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/profile.hpp"
#include "selector/memory/zero_settings.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {

enum class Engine : std::uint8_t { kDdp, kFsdp1, kFsdp2, kZero, kMegatron, kOwn };

struct Adapters {
  bool any = false;
  std::int64_t rank = 8;
  bool dropout = false, dora = false, ia3 = false;
  bool dora_again = false;              // DoRA computes the base product anew (PEFT before 0.14)
  int bytes = 2;                        // of an adapter weight
  bool own_units = true;                // wrapped apart from the block (PEFT); false: share its flat parameter (litgpt)
};

struct Setup {
  const job::Job& job;
  const job::Plan& plan;
  const model::Model& model;
  const hardware::Device& device;

  Engine engine = Engine::kDdp;
  std::string trainer;
  int age = kNewest;                    // of the trainer
  int torch_date = kNewest;             // day of the torch build: rows of what FSDP did at that time; kNewest = not stated
  bool colossal = false;

  std::int64_t gpus = 1, tp = 1, cp = 1, ep = 1, etp = 1, pp = 1, vp = 1;
  std::int64_t predictions = 0;         // blocks of multi-token prediction (Megatron)
  bool embedding_as_block = false, loss_as_block = false;   // in Megatron's split over pipeline ranks
  std::int64_t shard = 1;               // ranks that share one copy of what the stage shards
  std::int64_t expert_shard = 1;        // the same for expert weights
  std::int64_t stage = 0;
  job::Sharding::Reshard reshard = job::Sharding::Reshard::kTrue;
  std::int64_t micro_batch = 1, accumulation = 1;
  std::int64_t sequence = 0;            // positions a rank computes of each sequence
  std::int64_t decoder_sequence = 0;    // encoder-decoder models
  std::int64_t tokens = 0;              // micro_batch x sequence
  bool sequence_parallel = false;
  bool no_sync = false;
  bool longest_first = false;           // the longest batch is the run's first micro step: before any gradient or state exists
  bool collectives_record = false;      // tensor-parallel collectives hold their tensors back while the CPU runs ahead

  double parameter_bytes = 4, master_bytes = 0, gradient_bytes = 4, reduce_bytes = 4;
  int compute_bytes = 2;                // activations and gathered weights
  int residual_bytes = 2;               // the stream between blocks
  int norm_bytes = 0;                   // of a norm's output where its weight is wider; 0 = as computed
  int mlp_bytes = 0;                    // of MLP activations where wider; 0 = as computed
  int weight_gradient_bytes = 2;
  bool autocast = false, autocast_cache = false;
  // Transformer Engine's FP8: bytes of an element that a linear layer keeps of its input, and of the weights' copies; 0 = none
  double fp8_input_bytes = 0, fp8_weight_bytes = 0;

  Dialect dialect;
  LossRules loss;
  bool eager_attention = false;
  bool compiled = false;
  Adapters adapters;
  bool quantized = false;
  double quantized_bytes = 0.5;         // an element, with its scales
  bool quantized_context = false;       // inputs of quantized products live until the loss of the next micro batch

  enum class Checkpoint : std::uint8_t { kNone, kFull, kEvery, kFirst, kSelectiveOp, kSelectiveModules } checkpoint = Checkpoint::kNone;
  std::int64_t checkpoint_every = 1;
  std::int64_t checkpoint_first = 0, chunk_blocks = 1;   // kFirst: so many blocks of each chunk of a pipeline (Megatron's method "block")
  std::int64_t recompute_group = 1;     // with kFull: blocks recomputed at once from the input of the first (Megatron's method "uniform")
  std::vector<std::string> recomputed_modules;   // with kSelectiveModules
  bool policy_keeps_abs = false, policy_keeps_reduce_scatter = true, policy_keeps_attention = true;   // torchtitan's save list at its version
  bool policy_keeps_every = false;      // ... without the rule of every second matmul
  bool policy_keeps_experts = true, policy_keeps_exchange = false;   // grouped matmuls; results of all-to-all
  // torchtitan's graph_trainer: one traced graph, run operator by operator on one stream or as a CUDA graph with a pool of its own
  enum class Graph : std::uint8_t { kNone, kOneStream, kCudaGraph } graph = Graph::kNone;
  bool reentrant = false;
  bool offload_parameters = false, offload_gradients = false, offload_optimizer = false, offload_activations = false;

  enum class Step : std::uint8_t { kFused, kForeach, kSingle, kCpu } step = Step::kFused;
  int states = 2;                       // tensors a parameter
  double state_bytes = 4;               // an element of one of them, with its scales
  std::int64_t galore_rank = 0;
  bool states_on_device = true;
  bool in_backward = false;
  bool low_bit_wide_embeddings = false; // their states stay fp32
  bool low_bit_step = false;            // torchao's 8- and 4-bit optimizers
  bool gradients_persist = false;       // zero_grad writes zeros instead of letting go (torch before 2.0)

  std::int64_t unit_blocks = 1;         // blocks a gather unit
  bool gather_parts = false;            // units are modules of blocks (gather_parts.hpp)
  bool split_root = false;              // embedding and head are units of their own
  bool root_reshards = false;           // the root unit is released after forward and gathered again for its backward
  std::int64_t prefetch = 1;
  std::int64_t gathers_in_flight = 2;   // frees that wait for an event (FSDP1)
  bool prefetch_backward = true, forward_prefetch = false;
  bool flat_whole = false;              // FSDP1's NO_SHARD: nothing is sharded, gradients are still flat parameters'

  ZeroSettings zero;                    // DeepSpeed, and engines that work like it

  std::vector<std::string> assumed;

  std::int64_t block_unit(std::int64_t block) const { return block / unit_blocks; }
  std::int64_t padded_vocabulary() const;
};

// Throws Error for combinations that the framework refuses.
Setup make_setup(const Request& request);

// Whether the plan leaves open if activations are checkpointed. Our runtime's default is known: none.
bool checkpointing_unknown(const job::Job& job, const job::Plan& plan);

// Fills Setup::loss from job and profile.
LossRules loss_rules(const Setup& setup);

// Whether `name` ("model.layers.3.mlp.up_proj") is meant by a list of module names or prefixes as users write them.
bool names_module(const std::vector<std::string>& patterns, const std::string& module, const std::string& full_name);

// The model with kinds of its own for layers that a partial method names by number; nothing where it names none.
std::optional<model::Model> numbered_layers(const job::Job& job, const model::Model& model);

}  // namespace shardfit::memory
