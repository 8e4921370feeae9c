// How large each unit of the model is on one rank: at rest, gathered, its gradients and optimizer states, with the padding that
// each framework adds.
#pragma once
#include <cstdint>
#include <vector>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {

struct ParameterRole {
  bool trainable = false, quantized = false;
};

struct UnitSizes {
  std::vector<ParameterRole> roles;      // one a parameter of the block
  std::vector<std::int64_t> adapter;     // adapter elements of each operator of the block (0 = none)
  std::vector<std::int64_t> adapter_out; // their output features where only a part of a fused projection is adapted; else 0
  // Elements on this rank's tensor- and expert-parallel share.
  std::int64_t elements = 0, expert_elements = 0, trainable = 0, quantized = 0, adapters = 0;
  std::int64_t whole_elements = 0, whole_trainable = 0;  // of the model, before any parallelism; for the counts that are reported
  std::int64_t rest_bytes = 0;           // parameters at rest, unsharded
  std::int64_t rest_shard_bytes = 0;     // the same as this rank keeps them under stage 3
  std::int64_t gather_bytes = 0;         // what a gather makes, in the format in which it is computed
  std::int64_t trained = 0;              // trainable + adapters
  std::int64_t trained_shard = 0;        // with padding, over the ranks that share it
  std::int64_t matrices = 0;             // weights that autocast copies
  std::int64_t trained_matrices = 0;     // those whose copy it keeps until it is left
  std::int64_t persistent = 0;           // ZeRO-3: elements that stay whole because they are small
  std::int64_t update_temporary = 0;     // bytes of the optimizer's work on one tensor, the most of any
  std::int64_t largest = 0;              // elements of the largest trained tensor
  std::vector<std::int64_t> whole_tensors;    // elements of each trained parameter, whole
  std::vector<std::int64_t> trained_tensors;  // elements of each trained tensor as this rank keeps it
  std::vector<std::int64_t> state_tensors;    // elements of each optimizer state of them
};

// `block` is a block of the model, its embedding or its head. `table_only`: of an embedding, only what has a row a token.
UnitSizes unit_sizes(const Setup& setup, const model::Block& block, bool table_only = false);

}  // namespace shardfit::memory
