// The ways of working behind make_sharder, one source file each: sharder_fsdp1.cpp, sharder_fsdp2.cpp, sharder_zero3.cpp,
// sharder_zero12.cpp, sharder_megatron.cpp, and sharder_whole.cpp where neither parameters nor gradients are sharded (DDP, ZeRO-0).
#pragma once
#include "selector/memory/sharder.hpp"

namespace shardfit::memory {

// Whether the plan has parameters come and go at all.
inline bool gathers(const Setup& s) { return s.stage == 3 && (s.shard > 1 || s.offload_parameters); }

std::unique_ptr<Sharder> make_fsdp1(const Setup& setup, Timeline& timeline);
std::unique_ptr<Sharder> make_fsdp2(const Setup& setup, Timeline& timeline);
std::unique_ptr<Sharder> make_zero3(const Setup& setup, Timeline& timeline);
std::unique_ptr<Sharder> make_zero12(const Setup& setup, Timeline& timeline);
std::unique_ptr<Sharder> make_megatron(const Setup& setup, Timeline& timeline);
// Units inside of blocks, by the sharder of FSDP1 or FSDP2 (sharder_parts.cpp).
std::unique_ptr<Sharder> make_parts(const Setup& setup, Timeline& timeline, std::unique_ptr<Sharder> inner);
std::unique_ptr<Sharder> make_whole(const Setup& setup, Timeline& timeline);

}  // namespace shardfit::memory
