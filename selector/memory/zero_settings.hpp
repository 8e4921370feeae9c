// DeepSpeed's settings as its code takes them, and whether it would start with them at all.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::memory {

struct ZeroSettings {
  int release = 99999999;               // 0.16.4 -> 1604; the largest when not stated

  // elements
  double reduce_bucket = 5e8, allgather_bucket = 5e8, prefetch_bucket = 5e7, max_live = 1e9, max_reuse = 1e9;
  double persistence = 1e5, model_persistence = 1e30, sub_group = 1e9;
  bool overlap = false;                 // overlap_comm
  bool contiguous = true;               // contiguous_gradients
  bool reduce_scatter = true;
  bool gathers_one_by_one = false;      // stage3_allgather_sequential
  bool gathers_by_all_reduce = false;   // stage3_use_all_reduce_for_fetch_params
  bool weights_saved_whole = false;     // memory_efficient_linear false: autograd holds what the forward gathered
  double granularity = 0;               // stage3_module_granularity_threshold
  std::vector<std::string> leaf_classes;  // leaf_module.classes: fetched as one
  bool consolidates_on_save = false;    // stage3_gather_16bit_weights_on_model_save

  std::int64_t second_shard = 1;        // zero_hpz_partition_size
  bool quantized_gathers = false;       // zero_quantized_weights
  bool quantized_frozen = false;        // zero_quantized_nontrainable_weights
  bool quantized_gradients = false;     // zero_quantized_gradients
  bool loco = false;                    // zeropp_loco_param: what the quantization lost is kept for the next step
  std::int64_t mics = 0;                // mics_shard_size

  double communication_bytes = 2;       // communication_data_type
  double accumulation_bytes = 2;        // data_types.grad_accum_dtype
  double update_bytes = 4;              // of the gradient that the optimizer gets: that of the master weights
  bool immediate_update = false;        // bf16.immediate_grad_update

  // offload_param and offload_optimizer
  double parameter_buffers = 5, parameter_buffer_size = 1e8, most_in_memory = 1e9;
  double optimizer_buffers = 4;
  bool pins_parameters = true, pins_optimizer = true;
  bool pipelined_swap = false;          // pipeline_read or pipeline_write
  bool super_offload = false;

  // activation_checkpointing
  bool partitions_activations = false, activations_on_cpu = false;
};

// "0.16.4" -> 1604, "0.9" -> 900; the largest number where `version` names no release.
int deepspeed_release(std::string_view version);

}  // namespace shardfit::memory
