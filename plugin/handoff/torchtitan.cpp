// Names: of torchtitan 0.3.0 the flags (torchtitan/config/configs.py, components/optimizer/optimizer.py,
// distributed/activation_checkpoint.py; read by tyro), of 0.2.2 and before the TOML file
// (torchtitan/config/job_config.py). tests/plugin/handoff/exports has both read by torchtitan's own parsers.
#include <fmt/format.h>

#include <map>
#include <vector>

#include "plugin/handoff/exports.hpp"
#include "plugin/handoff/precision.hpp"
#include "regions/base/text.hpp"

namespace shardfit::handoff {
namespace {

struct Setting {
  std::string section, key, value;
  enum Kind { kNumber, kText, kFlag } kind = kNumber;
};

std::vector<Setting> settings(const job::Job& job, const job::Plan& plan) {
  using Reshard = job::Sharding::Reshard;
  const auto formats = formats_of(job.precision);
  std::vector<Setting> s;
  const auto number = [&](const char* section, const char* key, std::int64_t n) {
    s.push_back({section, key, std::to_string(n)});
  };
  const auto text = [&](const char* section, const char* key, std::string value) {
    s.push_back({section, key, std::move(value), Setting::kText});
  };
  number("training", "local_batch_size",
         plan.pipeline.degree > 1 ? plan.micro_batch * plan.gradient_accumulation : plan.micro_batch);
  number("training", "global_batch_size", plan.micro_batch * plan.gradient_accumulation * plan.data_parallel());
  if (job.sequence_length > 0) number("training", "seq_len", job.sequence_length);
  if (job.duration_steps) number("training", "steps", *job.duration_steps);
  s.push_back({"training", "max_norm", fmt::format("{}", job.train.max_grad_norm)});
  text("training", "mixed_precision_param", formats.compute == job::DType::kFp32 ? "float32" : "bfloat16");
  text("training", "mixed_precision_reduce", "float32");
  if (formats.without_master && formats.compute == job::DType::kBf16) text("training", "dtype", "bfloat16");
  s.push_back({"training", "enable_cpu_offload", plan.offload.parameters != job::Place::kNone ? "true" : "false",
               Setting::kFlag});
  const bool sharded = plan.sharding.stage > 0;  // torchtitan shards parameters or nothing
  number("parallelism", "data_parallel_replicate_degree",
         sharded ? plan.sharding.replicate_degree : plan.data_parallel());
  number("parallelism", "data_parallel_shard_degree", sharded ? plan.sharding.shard_degree : 1);
  const auto reshard = plan.sharding.reshard_after_forward;
  text("parallelism", "fsdp_reshard_after_forward",
       plan.sharding.stage < 3 || reshard == Reshard::kFalse ? "never"
       : reshard == Reshard::kAlways                         ? "always"
                                                             : "default");
  number("parallelism", "tensor_parallel_degree", plan.tensor_parallel);
  number("parallelism", "context_parallel_degree", plan.context_parallel);
  number("parallelism", "expert_parallel_degree", plan.expert_parallel);
  number("parallelism", "pipeline_parallel_degree", plan.pipeline.degree);
  if (plan.pipeline.degree > 1) {
    text("parallelism", "pipeline_parallel_schedule",
         plan.pipeline.schedule == "gpipe"              ? "GPipe"
         : plan.pipeline.schedule == "interleaved_1f1b" ? "Interleaved1F1B"
                                                        : "1F1B");
    number("parallelism", "pipeline_parallel_microbatch_size", plan.micro_batch);
  }
  if (job.optimizer.implementation)
    text("optimizer", "implementation",
         *job.optimizer.implementation == "single"    ? "for-loop"
         : *job.optimizer.implementation == "foreach" ? "foreach"
                                                      : "fused");
  number("lr_scheduler", "warmup_steps", job.train.warmup_steps);
  return s;
}

std::string flag(const Setting& s) {
  const auto name = s.section + "." + s.key;
  if (s.kind == Setting::kFlag) return s.value == "true" ? "--" + name : "--" + s.section + ".no-" + s.key;
  return "--" + name + "=" + s.value;
}

const char* optimizer_name(const job::Job& job) { return job.optimizer.name == "adam" ? "Adam" : "AdamW"; }

}  // namespace

std::string torchtitan_args(const job::Job& job, const job::Plan& plan) {
  std::string out;
  for (const auto& s : settings(job, plan)) out += flag(s) + "\n";
  // The first group of parameters: all of them in torchtitan's own configurations of dense models.
  const auto& t = job.train;
  const auto group = [&](const char* key, const std::string& value) {
    out += std::string("--optimizer.param_groups.0.") + key + value + "\n";
  };
  group("optimizer_name=", optimizer_name(job));
  group("optimizer_kwargs.lr=", fmt::format("{}", t.learning_rate));
  group("optimizer_kwargs.betas ", fmt::format("{} {}", t.adam_beta1, t.adam_beta2));
  group("optimizer_kwargs.eps=", fmt::format("{}", t.adam_epsilon));
  group("optimizer_kwargs.weight_decay=", fmt::format("{}", t.weight_decay));
  out += job.compile == "none" ? "--compile.no-enable\n" : "--compile.enable\n";
  if (plan.pipeline.degree > 1) out += "--training.disable_cuda_graphs\n";  // refused beside a pipeline
  // A subcommand, so last. "selective" is the policy by operation; to keep all but each k-th block there is none (see
  // torchtitan_note): full uses no more memory.
  const auto& kind = plan.checkpointing.kind;
  out += "activation-checkpoint:" +
         std::string(kind == "none"                                  ? "none"
                     : kind == "selective_op" || kind == "selective" ? "selective"
                                                                     : "full") +
         "\n";
  return out;
}

std::string torchtitan_note(const job::Plan& plan) {
  const auto& c = plan.checkpointing;
  if (c.kind == "none" || c.kind == "selective_op" || c.kind == "selective" || c.every <= 1) return "";
  return fmt::format(
      "torchtitan.args recomputes all blocks: torchtitan 0.3 has no flag for every {}. block (torchtitan.toml of 0.2 has); it uses less memory than planned and takes longer",
      c.every);
}

std::string torchtitan_toml(const job::Job& job, const job::Plan& plan) {
  std::map<std::string, std::string> sections;
  for (const auto& s : settings(job, plan)) {
    sections[s.section] += s.key + " = " + (s.kind == Setting::kText ? "\"" + s.value + "\"" : s.value) + "\n";
  }
  const auto& t = job.train;
  sections["optimizer"] =
      fmt::format("name = \"{}\"\nlr = {}\nbeta1 = {}\nbeta2 = {}\neps = {}\nweight_decay = {}\n", optimizer_name(job),
                  t.learning_rate, t.adam_beta1, t.adam_beta2, t.adam_epsilon, t.weight_decay) +
      sections["optimizer"];
  const auto& c = plan.checkpointing;
  auto& ac = sections["activation_checkpoint"];
  if (c.kind == "none") {
    ac = "mode = \"none\"\n";
  } else if (c.kind == "selective_op" || c.kind == "selective") {
    ac = "mode = \"selective\"\nselective_ac_option = \"op\"\n";
  } else if (c.every > 1) {
    ac = fmt::format("mode = \"selective\"\nselective_ac_option = \"{}\"\n", c.every);
  } else {
    ac = "mode = \"full\"\n";
  }
  sections["compile"] = job.compile == "none"
                            ? "enable = false\n"
                            : std::string("enable = true\ncomponents = ") +
                                  (job.compile == "block" ? "[\"model\"]\n" : "[\"model\", \"loss\"]\n");
  std::string out;
  for (const auto& [name, body] : sections) out += "[" + name + "]\n" + body + "\n";
  return out;
}

}  // namespace shardfit::handoff
