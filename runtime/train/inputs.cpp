#include "runtime/train/inputs.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "runtime/device/pool.hpp"
#include "selector/memory/own_runtime.hpp"
#include "selector/schedule/supported.hpp"

namespace shardfit::train {
namespace {

namespace fs = std::filesystem;

struct Setting {
  std::string key, value;
};

Setting split_setting(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error("usage", "--set", fmt::format("\"{}\" is not KEY=VALUE", text),
                "write e.g. --set train.learning_rate=1e-4");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// Bytes of RAM that a rank may use: the control group's limit or the machine's memory, shared by the node's ranks.
double host_memory_bytes() {
  double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    double limit = 0;
    if (std::ifstream(file) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

double capacity_of(const job::Plan& plan, int local_ranks) {
  if (plan.device_memory_gib) return *plan.device_memory_gib * 1073741824.0;
  return host_memory_bytes() / std::max(local_ranks, 1);
}

// The simplest plan for this machine: sharded over the ranks, the largest micro batch that fits, recomputing only where
// it must.
job::Plan plan_for_machine(const job::Job& job, const model::Model& model, int ranks, std::vector<std::string>& notes) {
  auto per_rank = job.global_batch_sequences > 0 ? job.global_batch_sequences / ranks : 1;
  if (job.global_batch_tokens)
    per_rank =
        std::max<std::int64_t>(std::llround(static_cast<double>(*job.global_batch_tokens) /
                                            (static_cast<double>(job.sequence_length) * static_cast<double>(ranks))),
                               1);
  if (job.global_batch_sequences % ranks != 0)
    throw Error("batch_mismatch", "/global_batch_sequences",
                fmt::format("{} sequences cannot be dealt out evenly to {} ranks", job.global_batch_sequences, ranks),
                "choose another number of ranks, or a batch that they divide");
  job::Plan best;
  bool found = false;
  for (const char* checkpointing : {"none", "full"}) {
    for (auto micro = per_rank; micro >= 1 && !found; --micro) {
      if (per_rank % micro != 0) continue;
      job::Plan plan;
      plan.gpu = "cpu";
      plan.gpus_per_node = ranks;
      plan.sharding.stage = ranks > 1 ? 3 : 0;
      plan.sharding.shard_degree = ranks;
      plan.micro_batch = micro;
      plan.gradient_accumulation = per_rank / micro;
      plan.checkpointing.kind = checkpointing;
      plan.checkpointing.stated = true;
      best = plan;
      found = static_cast<double>(memory::own_runtime_memory(model, job, plan).allocated_peak) <
              0.8 * capacity_of(plan, ranks);
    }
    if (found) break;
  }
  notes.push_back(fmt::format(
      "no plan given: {} CPU rank{}, stage {}, micro batch {}, accumulation {}, activation checkpointing {}", ranks,
      ranks == 1 ? "" : "s", best.sharding.stage, best.micro_batch, best.gradient_accumulation,
      best.checkpointing.kind));
  return best;
}

std::string default_output(const std::string& job_file) {
  const fs::path path(job_file);
  return (path.parent_path() / path.stem()).string();
}

}  // namespace

void apply_setting(nlohmann::json& object, const std::string& key, const std::string& value) {
  auto* at = &object;
  const auto parts = split(key, '.');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty())
      throw Error("usage", "--set", fmt::format("\"{}\" has an empty part", key), "write e.g. train.learning_rate");
    if (!at->is_object()) *at = nlohmann::json::object();
    at = &(*at)[parts[i]];
  }
  auto parsed = nlohmann::json::parse(value, nullptr, false);
  *at = parsed.is_discarded() ? nlohmann::json(value) : parsed;
}

Inputs read_inputs(const Options& options, int ranks) {
  Inputs inputs;
  auto job_json = read_json_file(options.job);
  std::string plan_file = options.plan;
  if (plan_file.empty())
    if (const char* variable = std::getenv("SHARDFIT_PLAN"); variable && *variable) plan_file = variable;
  nlohmann::json plan_json;
  if (!plan_file.empty()) plan_json = read_json_file(plan_file);
  std::vector<Setting> for_plan;
  for (const auto& text : options.set) {
    const auto setting = split_setting(text);
    if (setting.key.starts_with("plan.")) for_plan.push_back({setting.key.substr(5), setting.value});
    else apply_setting(job_json, setting.key, setting.value);
  }
  const auto folder = fs::absolute(fs::path(options.job)).parent_path().string();
  try {
    inputs.job = job::parse_job(job_json, folder);
    inputs.job.file = options.job;
    if (inputs.job.model.empty())
      throw Error("missing_key", "/model", "is missing", "name a Hugging Face folder or its config.json");
    if (inputs.job.sequence_length < 1)
      throw Error("missing_key", "/sequence_length", "is missing", "state the tokens of a sequence");
  } catch (Error& error) {
    error.in_file(options.job);
    throw;
  }
  auto& job = inputs.job;
  if (!options.output.empty()) job.output = fs::absolute(options.output).string();
  else job.output = fs::absolute(job.output.empty() ? default_output(options.job) : job.resolve(job.output)).string();
  const auto model_path = fs::absolute(job.model_path());
  inputs.model = model::load_model(model_path.string());
  inputs.model_folder = fs::is_directory(model_path) ? model_path.string() : model_path.parent_path().string();
  if (plan_file.empty()) {
    inputs.plan = plan_for_machine(job, inputs.model, ranks, inputs.notes);
    if (!for_plan.empty()) plan_json = job::to_json(inputs.plan);
  }
  if (!plan_json.is_null()) {
    for (const auto& setting : for_plan) apply_setting(plan_json, setting.key, setting.value);
    try {
      inputs.plan = job::parse_plan(plan_json);
    } catch (Error& error) {
      error.in_file(plan_file);
      throw;
    }
  }
  auto& plan = inputs.plan;
  const auto named = [&](const auto& work) {
    try {
      work();
    } catch (Error& error) {  // the schedule knows keys, not files
      const bool of_plan = error.where.starts_with("/plan"), of_job = error.where.starts_with("/job");
      const auto& file = of_plan ? plan_file : options.job;
      if ((!of_plan && !of_job) || file.empty()) throw;
      Error known(error.code, error.where.substr(of_plan ? 5 : 4), error.message, error.remedy, error.exit_status);
      known.in_file(file);
      throw known;
    }
  };
  named([&] { schedule::check_supported(job, plan, &inputs.model); });
#ifndef SHARDFIT_WITH_CUDA
  if (plan.gpu != "cpu")
    throw Error("not_supported", "/plan/gpu",
                fmt::format("this shardfit-train runs CPU ranks, the plan is for \"{}\"", plan.gpu),
                "build the preset \"cuda\" on a machine with that GPU, or plan for \"cpu\"");
#endif
  // "shard_degree N with stage 0 means the same" as replicate_degree N.
  if (plan.sharding.stage == 0 && plan.sharding.shard_degree > 1) {
    plan.sharding.replicate_degree *= plan.sharding.shard_degree;
    plan.sharding.shard_degree = 1;
  }
  if (plan.gpus() != ranks)
    throw Error(
        "ranks_mismatch", "/plan/gpus_per_node",
        fmt::format("the plan is for {} ranks, this run has {}", plan.gpus(), ranks),
        "start as many ranks as the plan says, or change the plan with --set plan.gpus_per_node=N and plan.sharding.shard_degree=N");
  job::check_plan_against_job(job, plan);
  if (const auto rounding = job::batch_rounding(job, plan)) inputs.notes.push_back(*rounding);
  if (job.global_batch_sequences == 0) job.global_batch_sequences = job::global_batch(plan);
  job.global_batch_tokens.reset();  // from here on the batch is a number of sequences, which a resumed run must keep
  named([&] { inputs.step = schedule::build_step(inputs.model, job, plan); });
  for (const auto& warning : job.warnings) inputs.notes.push_back(warning);
  if (auto warning = schedule::without_effect(plan)) {
    for (const auto& unknown : plan.warnings) *warning += "; " + unknown;
    inputs.notes.push_back(*warning);
  }
  return inputs;
}

void check_memory(const Inputs& inputs, int local_ranks) {
  if (inputs.plan.gpu != "cpu")
    return;  // a GPU's memory is known when it is asked for: Region then names what did not fit
  const double capacity = capacity_of(inputs.plan, local_ranks);
  const auto estimate = memory::own_runtime_memory(inputs.step);
  if (static_cast<double>(estimate.allocated_peak) <= capacity) return;
  std::string remedy = "use more ranks or a smaller model";
  auto plan = inputs.plan;
  auto fits = [&] {
    return static_cast<double>(memory::own_runtime_memory(inputs.model, inputs.job, plan).allocated_peak) <= capacity;
  };
  plan.checkpointing.kind = "full";
  plan.checkpointing.every = 1;
  while (!fits() && plan.micro_batch > 1) {
    auto micro = plan.micro_batch - 1;
    while (plan.micro_batch % micro != 0) --micro;
    plan.gradient_accumulation *= plan.micro_batch / micro;
    plan.micro_batch = micro;
  }
  if (!fits() && plan.sharding.stage == 0 && plan.gpus() > 1) {
    plan.sharding.stage = 3;
    plan.sharding.shard_degree = plan.gpus();
    plan.sharding.replicate_degree = 1;
  }
  if (fits())
    remedy = fmt::format(
        "this plan would fit: micro_batch {}, gradient_accumulation {}, activation_checkpointing \"full\", sharding.stage {}",
        plan.micro_batch, plan.gradient_accumulation, plan.sharding.stage);
  throw Error("out_of_memory", "/plan/device_memory_gib",
              fmt::format("a rank needs {}, of which {} {}; it has {}",
                          format_bytes(static_cast<double>(estimate.allocated_peak)),
                          format_bytes(static_cast<double>(estimate.terms.front().bytes)), estimate.terms.front().name,
                          format_bytes(capacity)),
              remedy, device::kExitOutOfMemory);
}

}  // namespace shardfit::train
