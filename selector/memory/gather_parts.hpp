// Which modules of a block are gathered as one, where the plan states other units than whole blocks: wrapped classes or modules
// (schedule.unit, transformer_layer_cls_to_wrap, auto_wrap_policy), or FSDP1's wrapping by size (min_num_params).
#pragma once
#include <string>
#include <vector>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {

struct BlockParts {
  static constexpr int kRoot = -1;
  int count = 0;                       // units that end inside of the block, numbered in the order of the forward
  bool whole = false;                  // the block is a unit as well, with what they leave; its number is `count`
  std::vector<int> of;                 // one a parameter of the block: its unit, or kRoot
};

// Whether the plan's units are other than whole blocks. Throws Error for a unit that the engine or the model does not have.
bool has_gather_parts(const Setup& setup);
BlockParts gather_parts(const Setup& setup, const model::Block& block);

// Whether token table and output projection are units apart from the root by the plan's rule.
bool parts_split_root(const Setup& setup);
bool table_in_root(const Setup& setup);

// The part of `block` that consists of the parameters whose number in `of` is `part`, for unit_sizes.
model::Block part_of_block(const model::Block& block, const std::vector<int>& of, int part);

}  // namespace shardfit::memory
