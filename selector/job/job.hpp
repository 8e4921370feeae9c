// What the user wants trained: the job file (docs/formats.md, "Job"). Optional members keep "not stated" apart from a
// default: whoever fills one in says so under `assumed`.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "selector/job/dtype.hpp"

namespace shardfit::job {

enum class MethodKind { kFull, kLora, kQlora, kIa3, kPartial };

struct Method {
  MethodKind kind = MethodKind::kFull;
  std::int64_t rank = 0;                     // lora, qlora
  double alpha = 0, dropout = 0;             // alpha 0 = not stated
  std::vector<std::string> targets;          // Hugging Face module names; "all-linear" stands alone
  std::vector<std::string> feedforward;      // ia3
  std::vector<std::string> modules_to_save;  // trained in full beside the adapters
  std::vector<std::string> trainable;        // partial: parameter names or module prefixes, '*' within a component
  std::optional<DType> adapter_dtype;        // absent: the library's default
  bool dora = false;
  DType quantization = DType::kNf4;  // qlora: nf4 | int8 | int4
  bool double_quantization = false;
  std::optional<DType> quant_storage;  // uint8 | bf16
};

// Precision as the job states it. The short names are expanded here; `name` keeps which one it was ("" = object form).
struct Precision {
  std::string name = "bf16-mixed";
  std::optional<DType> parameters, master, compute, gradients, reduce, norms;  // master DType::kNone = stated as "none"
  std::optional<std::string> fp8_recipe;
  std::optional<bool> autocast;
};

struct Optimizer {
  std::string name = "adamw";                 // adamw | adam | sgd | lion | adafactor | muon | galore_adamw
  std::optional<std::string> implementation;  // fused | foreach | single | cpu
  std::optional<DType> states;                // fp32 | bf16 | int8 | int4
  bool in_backward = false, paged = false;
};

struct Loss {
  std::string kind = "plain";  // plain | fused | chunked | fused_linear
  std::optional<std::int64_t> chunks, chunk_tokens;
  std::optional<std::string> over;  // logits | hidden
  std::optional<bool> keeps_outputs;
};

struct Framework {
  std::string name = "shardfit";  // shardfit | fsdp2 | fsdp1 | deepspeed | ddp | megatron | other
  std::string version, trainer, trainer_version, label;
  std::optional<bool> use_cache;        // of transformers' models
};

// Where no key is given, Hugging Face TrainingArguments' default but for the exceptions of formats.md.
struct Train {
  double learning_rate = 5e-5, min_lr_ratio = 0, weight_decay = 0, adam_beta1 = 0.9, adam_beta2 = 0.999,
         adam_epsilon = 1e-8, max_grad_norm = 1.0;
  std::string lr_scheduler_type = "cosine";  // cosine | linear | constant | wsd
  std::int64_t warmup_steps = 0, seed = 42, save_steps = 500, save_total_limit = 0 /* 0 = keep all */,
               logging_steps = 1, eval_steps = 0;
  std::vector<std::int64_t> save_at;
  bool dataloader_drop_last = false, log_sample_ids = false;
  std::string on_nonfinite = "stop";  // stop | skip
  std::string init = "pretrained";    // pretrained | random
  std::optional<double> dropout;      // overrides every dropout of config.json
};

struct Data {
  std::vector<std::string> train, eval;  // files or folders, absolute or relative to the job file
  std::string format = "text";           // text | jsonl | tokens
  std::string text_key = "text";
  bool packing = true, shuffle = true;
  std::optional<std::int64_t> tokens;  // only where they cannot be counted
};

struct Money {  // as written in a job: a decimal number beside its currency
  double amount = 0;
  std::string currency;
};

struct Job {
  std::string model;  // as written; resolve with model_path()
  Method method;
  std::optional<Data> data;
  std::map<std::string, std::string> locations;  // data | checkpoints | registry -> country code or region id
  std::optional<double> storage_gb, egress_gb;
  std::optional<std::int64_t> duration_tokens, duration_steps;
  std::optional<double> duration_epochs;
  std::int64_t sequence_length = 0;  // tokens; 0 = not stated (a job of pins alone)
  std::optional<std::int64_t> decoder_sequence_length;
  std::int64_t global_batch_sequences = 0;  // sequences per optimizer step; 0 = not stated
  std::optional<std::int64_t> global_batch_tokens;
  Precision precision;
  Optimizer optimizer;
  std::optional<std::string> attention;  // flash | flash1 | flash2 | flash3 | cudnn | flex | sdpa | eager
  Loss loss;
  std::optional<std::vector<std::string>> fused_kernels;  // absent = not stated; [] = eager
  std::string compile = "none";                           // none | block | block+loss | model | graph
  std::string software_torch, software_cuda;              // "" = the framework version's own
  Framework framework;
  Train train;
  std::string output;  // "" = a folder named after the job beside the file
  std::optional<double> deadline_seconds;
  std::optional<Money> max_cost;
  std::vector<std::string> pins;

  std::string file;      // the job file, "" when it came by line; relative paths are relative to its folder
  std::string base_dir;  // folder that relative paths are taken from
  std::vector<std::string> warnings;  // unknown keys in framework sections and the like

  std::string model_path() const;  // model, resolved against base_dir
  std::string resolve(const std::string& path) const;
};

// Throws Error naming file, key, value and remedy. `base_dir`: what relative paths are relative to. `where` = "" or
// "/job". The file form also requires what a run or an estimate needs (model, sequence_length); parse_job of a bare
// object does not.
Job parse_job(const nlohmann::json& object, const std::string& base_dir, const std::string& where = "");
Job read_job(const std::string& file);
// Throws Error{missing_key} for what an estimate cannot do without: model and sequence_length. `where` as in parse_job.
void require_estimable(const Job& job, const std::string& where = "");
// With every default filled in; read back it gives the same job.
nlohmann::ordered_json to_json(const Job& job);

}  // namespace shardfit::job
