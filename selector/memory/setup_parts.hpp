// make_setup in parts, one source file each (setup_*.cpp), called in this order after engine, layout, precision and method are known.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {

void set_kernels(Setup& setup);        // dialect, attention, fused kernels, compile
void set_optimizer(Setup& setup);      // states, implementation, where the step runs
void set_checkpointing(Setup& setup);
void set_zero(Setup& setup);           // DeepSpeed's keys
void set_megatron_layout(Setup& setup);   // expert tensor parallelism, virtual stages, multi-token prediction
void set_megatron(Setup& setup);       // formats of gradients, master weights and states
void check_megatron(const Setup& setup);  // throws Error where Megatron refuses
void check_tensor_parallel(const Setup& setup);

// Whether the code runs one expert after the other, and whether each is made of linear layers, which bitsandbytes quantises (expert_rules.cpp).
bool loops_over_experts(const Setup& setup);
bool experts_are_linear_layers(const Setup& setup);

// A flag of the plan's section "megatron" as users write it, with dashes or underscores; nullptr, the fallback, false or "" when absent.
const nlohmann::json* megatron_value(const job::Plan& plan, std::string_view flag);
std::int64_t megatron_number(const job::Plan& plan, std::string_view flag, std::int64_t fallback = 0);
bool megatron_flag(const job::Plan& plan, std::string_view flag);
std::string megatron_word(const job::Plan& plan, std::string_view flag);

}  // namespace shardfit::memory
