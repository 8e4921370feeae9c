// The block of multi-token prediction as Megatron builds it (core/transformer/multi_token_prediction.py): norms of the next token's
// embedding and of the hidden states, their concatenation projected back to the hidden size (eh_proj), then a transformer block.
#pragma once
#include "selector/model/model.hpp"

namespace shardfit::memory {

model::Block prediction_block(const model::Block& block, std::int64_t hidden);

}  // namespace shardfit::memory
