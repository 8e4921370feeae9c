// A plan in the words of other engines, so that a user's own script runs the way that was priced. Knobs that a plan
// holds under an engine's own names (its "deepspeed" and "fsdp" sections) win over what is derived here.
#pragma once
#include <string>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"

namespace shardfit::handoff {

// DeepSpeed's JSON configuration: batch sizes, precision, ZeRO stage, buckets (in elements, as DeepSpeed counts them),
// offload.
// `"trainer": "transformers"` gets "auto" for the optimizer's numbers, which its Trainer fills from its own arguments.
std::string deepspeed_json(const job::Job& job, const job::Plan& plan);

// Accelerate's configuration for FSDP (version 2, or 1 for framework fsdp1); plain data parallelism for stage 0.
std::string accelerate_yaml(const job::Job& job, const job::Plan& plan);

// torchtitan: the command line of release 0.3, one flag a line, to stand last ("... $(cat $SHARDFIT_TORCHTITAN_ARGS)"), and
// the TOML file that releases up to 0.2.2 read.
std::string torchtitan_args(const job::Job& job, const job::Plan& plan);
// What torchtitan_args cannot say of a plan; "" = it says all.
std::string torchtitan_note(const job::Plan& plan);
std::string torchtitan_toml(const job::Job& job, const job::Plan& plan);

}  // namespace shardfit::handoff
