// make_setup in parts, one source file each (setup_*.cpp), called in this order after engine, layout, precision and method are known.
#pragma once
#include "selector/memory/setup.hpp"

namespace shardfit::memory {

void set_kernels(Setup& setup);        // dialect, attention, fused kernels, compile
void set_optimizer(Setup& setup);      // states, implementation, where the step runs
void set_checkpointing(Setup& setup);
void set_zero(Setup& setup);           // DeepSpeed's keys

}  // namespace shardfit::memory
