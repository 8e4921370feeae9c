// The global batch: what the job wants and what the plan gives.
#include <cmath>
#include <string>

#include "regions/base/error.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"

namespace shardfit::job {

std::int64_t global_batch(const Plan& plan) {
  const double product = static_cast<double>(plan.micro_batch) * static_cast<double>(plan.gradient_accumulation) *
                         static_cast<double>(plan.data_parallel());
  if (product > 1e15)
    throw Error("out_of_range", "/plan/micro_batch",
                "micro_batch x gradient_accumulation x ranks is above 1e15 sequences",
                "lower micro_batch or gradient_accumulation");
  return plan.micro_batch * plan.gradient_accumulation * plan.data_parallel();
}

namespace {
// Accumulation steps that bring the plan's batch nearest to the tokens wanted; at least 1.
std::int64_t rounded_accumulation(const Job& job, const Plan& plan) {
  const double micro_tokens = static_cast<double>(plan.micro_batch) * static_cast<double>(plan.data_parallel()) *
                              static_cast<double>(job.sequence_length);
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(*job.global_batch_tokens) / micro_tokens));
}
}  // namespace

std::optional<std::string> batch_rounding(const Job& job, const Plan& plan) {
  if (!job.global_batch_tokens || job.sequence_length == 0) return std::nullopt;
  const double tokens = static_cast<double>(global_batch(plan)) * static_cast<double>(job.sequence_length);
  if (tokens == static_cast<double>(*job.global_batch_tokens)) return std::nullopt;
  return "global_batch_tokens=" + std::to_string(static_cast<long long>(tokens)) + " (" +
         std::to_string(*job.global_batch_tokens) + " rounded to whole micro batches)";
}

void check_plan_against_job(const Job& job, const Plan& plan) {
  const std::int64_t given = global_batch(plan);
  const std::string product =
      "micro_batch x gradient_accumulation x shard_degree x replicate_degree = " + std::to_string(plan.micro_batch) +
      " x " + std::to_string(plan.gradient_accumulation) + " x " + std::to_string(plan.sharding.shard_degree) + " x " +
      std::to_string(plan.sharding.replicate_degree) + " = " + std::to_string(given);
  if (job.global_batch_sequences && given != job.global_batch_sequences)
    throw Error("batch_mismatch", "/plan/gradient_accumulation",
                product + ", but global_batch_sequences is " + std::to_string(job.global_batch_sequences),
                "change gradient_accumulation or micro_batch so that both are equal");
  if (job.global_batch_tokens && job.sequence_length) {
    const std::int64_t wanted = rounded_accumulation(job, plan);
    if (plan.gradient_accumulation != wanted)
      throw Error("batch_mismatch", "/plan/gradient_accumulation",
                  product + " sequences of " + std::to_string(job.sequence_length) +
                      " tokens, but global_batch_tokens is " + std::to_string(*job.global_batch_tokens),
                  "set gradient_accumulation to " + std::to_string(wanted));
  }
}

}  // namespace shardfit::job
