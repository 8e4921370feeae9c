// The parts of a plan written under DeepSpeed's, FSDP's and Megatron's own names.
#pragma once
#include "selector/job/plan.hpp"

namespace shardfit::job {

// Checks the three sections (plan.deepspeed, plan.fsdp, plan.megatron) and carries over what means the same as a key of
// the plan: the section's value wins. An unknown key becomes a line of plan.warnings; "auto" is accepted for every key;
// negative or absurd sizes and contradictions throw Error. Returns the ZeRO stage that a section states, -1 if none
// does.
int apply_framework_sections(Plan& plan, const std::string& where);

}  // namespace shardfit::job
