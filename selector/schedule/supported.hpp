// What `shardfit-train` runs today. The search asks before it proposes a plan; the runtime asks before it starts.
#pragma once
#include <optional>
#include <string>

namespace shardfit {
struct Error;
}
namespace shardfit::job {
struct Job;
struct Plan;
}  // namespace shardfit::job
namespace shardfit::model {
struct Model;
}

namespace shardfit::schedule {

// Throws Error{not_supported} (exit status 2) with key, value and remedy for the first setting that the runtime cannot
// run. `model` may be null: then only job and plan are judged.
void check_supported(const job::Job& job, const job::Plan& plan, const model::Model* model = nullptr);

// The same as an answer: what check_supported would say, or nullopt.
std::optional<std::string> why_unsupported(const job::Job& job, const job::Plan& plan,
                                           const model::Model* model = nullptr);

// One warning that names every key stated in the plan's sections deepspeed, fsdp and megatron that changes nothing in
// shardfit-train; nullopt where there is none. Keys that would change what is computed or where it lies are refused by
// check_supported instead.
std::optional<std::string> without_effect(const job::Plan& plan);

}  // namespace shardfit::schedule
