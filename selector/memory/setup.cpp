#include "selector/memory/setup.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::memory {
namespace {

using job::DType;
using job::Place;

double bytes_or(const std::optional<DType>& type, double fallback) { return type ? job::bytes_of(*type) : fallback; }

bool is_quantized(DType t) { return t == DType::kNf4 || t == DType::kInt4 || t == DType::kInt8; }

void set_engine(Setup& s) {
  const auto& f = s.job.framework;
  if (f.name == "fsdp1") s.engine = Engine::kFsdp1;
  else if (f.name == "fsdp2") s.engine = Engine::kFsdp2;
  else if (f.name == "deepspeed") s.engine = Engine::kZero;
  else if (f.name == "megatron") s.engine = Engine::kMegatron;
  else if (f.name == "shardfit") s.engine = Engine::kOwn;
  else if (f.name == "ddp") s.engine = Engine::kDdp;
  else {
    s.engine = f.label.rfind("fairscale", 0) == 0 ? Engine::kFsdp1 : Engine::kZero;
    s.colossal = f.label.rfind("colossal", 0) == 0 || f.label.rfind("Colossal", 0) == 0;
    s.assumed.push_back(fmt::format("framework \"{}\" behaves like {} (no profile of its own)", f.label.empty() ? "other" : f.label,
                                    s.engine == Engine::kFsdp1 ? "fsdp1" : "ZeRO of the stated stage"));
  }
  s.trainer = f.trainer;
  s.age = trainer_age(f.trainer, f.trainer_version);
  // A trainer known by commit is run on that day's nightly where torch is not stated.
  const bool torch_engine = s.engine == Engine::kFsdp1 || s.engine == Engine::kFsdp2;
  s.torch_date = torch_release_date(!s.job.software_torch.empty() ? s.job.software_torch : torch_engine ? f.version : "");
  if (s.torch_date == kNewest && s.age > 20000000) s.torch_date = s.age;
  // Cards before Ampere with nothing said about the software: runs of their time, as with the CUDA context (overheads.cpp).
  const double capability = s.device.compute_capability_number();
  if (s.torch_date == kNewest && s.age == kNewest && f.version.empty() && capability > 0 && capability < 8 && s.engine == Engine::kDdp) {
    s.torch_date = 20220101;
    s.assumed.emplace_back("software.torch=1.10 (none stated, GPU older than Ampere)");
  }
  s.gradients_persist = s.torch_date < 20230315 && s.engine == Engine::kDdp;
}

void set_layout(Setup& s) {
  const auto& p = s.plan;
  s.gpus = p.gpus();
  s.tp = std::max<std::int64_t>(1, p.tensor_parallel);
  s.cp = std::max<std::int64_t>(1, p.context_parallel);
  s.ep = std::max<std::int64_t>(1, p.expert_parallel);
  s.pp = std::max<std::int64_t>(1, p.pipeline.degree);
  s.vp = std::max<std::int64_t>(1, p.pipeline.virtual_stages.value_or(1));
  if (p.pipeline.schedule == "interleaved_1f1b" && s.pp > 1 && s.vp == 1) {
    s.vp = 2;
    s.assumed.emplace_back("pipeline_parallel.virtual_stages=2 (interleaved schedule)");
  }
  s.stage = p.sharding.stage;
  s.reshard = p.sharding.reshard_after_forward;
  if (s.stage == 2 && (s.engine == Engine::kFsdp1 || s.engine == Engine::kFsdp2)) {
    s.stage = 3;
    s.reshard = job::Sharding::Reshard::kFalse;
  }
  s.shard = s.stage == 0 ? 1 : p.sharding.shard_degree * (p.sharding.over_context_parallel ? s.cp : 1);
  s.etp = s.engine == Engine::kMegatron ? s.tp : 1;
  if (s.engine == Engine::kMegatron) {
    if (const auto it = p.megatron.find("expert-tensor-parallel-size"); it != p.megatron.end() && it->is_number_integer())
      s.etp = std::max<std::int64_t>(1, it->get<std::int64_t>());
    s.shard = p.sharding.stage == 0 ? 1 : p.sharding.shard_degree * s.cp;   // the distributed optimizer shards over context parallelism too
  }
  s.expert_shard = s.stage == 0 ? 1 : std::max<std::int64_t>(1, s.gpus / (s.pp * s.etp * s.ep));
  if (s.ep == 1) s.expert_shard = s.shard;
  s.micro_batch = std::max<std::int64_t>(1, p.micro_batch);
  s.accumulation = std::max<std::int64_t>(1, p.gradient_accumulation);
  s.sequence = std::max<std::int64_t>(1, s.job.sequence_length / s.cp);
  s.decoder_sequence = std::max<std::int64_t>(1, s.job.decoder_sequence_length.value_or(s.job.sequence_length) / s.cp);
  s.tokens = s.micro_batch * s.sequence;
  s.sequence_parallel = p.sequence_parallel && s.tp > 1;
  s.no_sync = (p.accumulate_without_sync && s.accumulation > 1) || (s.engine == Engine::kFsdp2 && s.pp > 1);
  s.unit_blocks = std::max<std::int64_t>(1, p.schedule.unit_blocks.value_or(1));
}

void set_precision(Setup& s) {
  const auto& p = s.job.precision;
  const bool mixed16 = s.engine == Engine::kZero || s.engine == Engine::kMegatron;
  if (p.name.empty()) {
    const bool quantized = p.parameters && is_quantized(*p.parameters);
    s.parameter_bytes = quantized ? 2 : bytes_or(p.parameters, 2);
    s.master_bytes = bytes_or(p.master, 0);
    s.gradient_bytes = bytes_or(p.gradients, s.parameter_bytes);
    s.reduce_bytes = bytes_or(p.reduce, s.engine == Engine::kFsdp2 || s.engine == Engine::kOwn ? 4 : 2);
    const double compute = bytes_or(p.compute, 2);
    s.compute_bytes = compute >= 4 ? 4 : 2;
    s.autocast = p.autocast.value_or(false);
  } else if (p.name == "fp32") {
    s.parameter_bytes = s.gradient_bytes = s.reduce_bytes = 4;
    s.compute_bytes = 4;
  } else if (p.name == "bf16") {
    s.parameter_bytes = s.gradient_bytes = s.reduce_bytes = 2;
  } else {
    s.parameter_bytes = mixed16 ? 2 : 4;
    s.master_bytes = mixed16 ? 4 : 0;
    s.gradient_bytes = mixed16 && s.engine != Engine::kMegatron ? 2 : 4;
    s.reduce_bytes = mixed16 ? 2 : 4;
    s.autocast = p.autocast.value_or(s.engine == Engine::kDdp);
  }
  if (s.trainer == "xtuner" && !p.name.empty() && p.name != "fp32") s.reduce_bytes = 2;   // xtuner/v1/config/fsdp.py: reduce_dtype bf16
  s.residual_bytes = s.compute_bytes;
  s.weight_gradient_bytes = s.compute_bytes;
  s.autocast_cache = s.autocast && s.parameter_bytes >= 4 && (s.engine == Engine::kDdp || s.engine == Engine::kZero);
}

void set_method(Setup& s) {
  const auto& m = s.job.method;
  s.quantized = m.kind == job::MethodKind::kQlora;
  if (s.quantized) {
    // bitsandbytes: one fp32 scale for 64 weights; double quantisation keeps it in 8 bit with an fp32 scale for 256 of them
    const double scales = m.double_quantization ? 1.0 / 64 + 4.0 / (64 * 256) : 4.0 / 64;
    s.quantized_bytes = job::bytes_of(m.quantization) + (m.quantization == DType::kInt8 ? 4.0 / 4096 : scales);
  }
  if (m.kind == job::MethodKind::kLora || m.kind == job::MethodKind::kQlora || m.kind == job::MethodKind::kIa3) {
    s.adapters.any = true;
    s.adapters.ia3 = m.kind == job::MethodKind::kIa3;
    s.adapters.rank = m.rank > 0 ? m.rank : 8;
    s.adapters.dropout = m.dropout > 0;
    s.adapters.dora = m.dora;
    if (m.adapter_dtype) {
      s.adapters.bytes = static_cast<int>(job::bytes_of(*m.adapter_dtype));
    } else {
      s.adapters.bytes = s.trainer == "transformers" ? 4 : 2;   // PEFT: autocast_adapter_dtype upcasts them
      s.assumed.push_back(fmt::format("method.adapter_dtype={} ({})", s.adapters.bytes == 4 ? "fp32" : "bf16", s.trainer.empty() ? "compute format" : s.trainer + " default"));
    }
    s.adapters.own_units = s.trainer != "litgpt";
  }
}

void set_checkpointing(Setup& s) {
  const auto& c = s.plan.checkpointing;
  using C = Setup::Checkpoint;
  if (c.kind == "full") s.checkpoint = c.every > 1 ? C::kEvery : C::kFull;
  else if (c.kind == "selective_op") s.checkpoint = c.save && *c.save == "all_compute" ? C::kNone : C::kSelectiveOp;
  else if (c.kind == "selective") s.checkpoint = c.every > 1 ? C::kEvery : C::kSelectiveModules;
  else s.checkpoint = c.every > 1 ? C::kEvery : C::kNone;
  s.checkpoint_every = std::max<std::int64_t>(1, c.every);
  s.recomputed_modules = c.modules;
  if (s.checkpoint == C::kSelectiveModules && c.modules.empty()) {
    s.recomputed_modules = {"core_attn"};
    s.assumed.emplace_back("activation_checkpointing.modules=[\"core_attn\"] (Megatron's selective recomputation)");
  }
  s.reentrant = c.reentrant.value_or(false);
  if (s.trainer == "torchtitan") {
    const auto& compute = s.job.precision.compute;
    // _save_list of parallelize_llama.py: aten.abs from 6b03ffa32 to 5940ddeb5, without reduce_scatter from 7090a7b60 to 88d8ab372
    s.policy_keeps_abs = compute && *compute == DType::kFp8 && !s.compiled && s.checkpoint == C::kSelectiveOp && s.age >= 20241226 && s.age < 20250206;
    s.policy_keeps_reduce_scatter = !(s.age >= 20250403 && s.age < 20250421);
    // Blackwell takes cuDNN's attention, which the list knows since b39377f9f
    s.policy_keeps_attention = !(s.device.compute_capability_number() >= 10 && s.age < 20251201);
  }
}

void set_optimizer(Setup& s) {
  const auto& o = s.job.optimizer;
  const bool low_bit = o.states && (*o.states == DType::kInt8 || *o.states == DType::kInt4);
  if (o.name == "sgd" || o.name == "lion" || o.name == "muon") s.states = 1;
  if (o.name == "galore_adamw") {
    s.galore_rank = std::max<std::int64_t>(1, s.model.hidden / 4);
    s.assumed.push_back(fmt::format("GaLore rank {} (a quarter of the hidden size, as in its paper)", s.galore_rank));
  }
  s.in_backward = o.in_backward;
  if (o.states) {
    s.state_bytes = job::bytes_of(*o.states);
    if (*o.states == DType::kInt8) s.state_bytes += 4.0 / 256;    // one scale a block of 256
    if (*o.states == DType::kInt4) s.state_bytes += 4.0 / 128;
  } else {
    s.state_bytes = s.adapters.any ? s.adapters.bytes : s.master_bytes > 0 ? 4 : s.parameter_bytes;
    s.assumed.push_back(fmt::format("optimizer.states={} (format of the trained weights)", s.state_bytes == 4 ? "fp32" : "bf16"));
  }
  s.offload_optimizer = s.plan.offload.optimizer != Place::kNone;
  const bool cpu = o.implementation && *o.implementation == "cpu";
  s.states_on_device = !s.offload_optimizer && !cpu && !o.paged;
  if (o.implementation) {
    s.step = cpu ? Setup::Step::kCpu : *o.implementation == "fused" ? Setup::Step::kFused : *o.implementation == "single" ? Setup::Step::kSingle : Setup::Step::kForeach;
  } else {
    const auto& fsdp = s.plan.fsdp;
    const auto orig = fsdp.find("use_orig_params");
    if (low_bit || o.paged) s.step = Setup::Step::kFused;
    else if (s.engine == Engine::kFsdp1 && orig != fsdp.end() && orig->is_boolean() && !orig->get<bool>()) s.step = Setup::Step::kSingle;
    else if (s.engine == Engine::kMegatron || s.engine == Engine::kZero || s.engine == Engine::kOwn) s.step = Setup::Step::kFused;
    // torch/optim/optimizer.py _default_to_fused_or_foreach: a DTensor is not a type that foreach is chosen for by itself
    else if (s.engine == Engine::kFsdp2 && s.stage == 3 && s.shard > 1 && s.trainer != "torchtitan") s.step = Setup::Step::kSingle;
    else s.step = s.torch_date < 20230315 ? Setup::Step::kSingle : Setup::Step::kForeach;   // foreach is the default since torch 2.0
    static constexpr const char* kNames[] = {"fused", "foreach", "single", "cpu"};
    s.assumed.push_back(fmt::format("optimizer.implementation={} ({} default)", kNames[static_cast<int>(s.step)], s.job.framework.name));
  }
  if (low_bit && s.step == Setup::Step::kForeach) s.step = Setup::Step::kFused;
  // torchtune takes torchao's where they are not paged; transformers and others take bitsandbytes', whose kernels need no copies
  s.low_bit_step = low_bit && !o.paged && s.states_on_device && (s.trainer == "torchtune" || s.trainer.rfind("torchao", 0) == 0);
}

void set_offload(Setup& s) {
  const auto& o = s.plan.offload;
  s.offload_parameters = o.parameters != Place::kNone;
  s.offload_gradients = o.gradients != Place::kNone || (s.offload_parameters && s.engine != Engine::kZero);
  s.offload_activations = o.activations != Place::kNone;
  if (s.offload_parameters && s.stage < 3 && s.engine != Engine::kFsdp1 && s.engine != Engine::kFsdp2 && s.engine != Engine::kOwn) {
    const auto& name = s.job.framework.name;
    if ((name == "deepspeed" && s.gpus > 1) || s.engine == Engine::kMegatron)
      throw Error("unsupported_combination", "/plan/offload/parameters",
                  s.engine == Engine::kMegatron ? "megatron does not offload parameters" : fmt::format("deepspeed offloads parameters in stage 3 only, this plan has stage {}", s.stage),
                  s.engine == Engine::kMegatron ? "set offload.parameters to \"none\", or choose framework deepspeed or fsdp2" : "set sharding.stage to 3 or offload.parameters to \"none\"");
    // an engine without a profile, or one GPU whose stage is a formality
    s.assumed.push_back(fmt::format("offloaded parameters come to the GPU unit by unit, as in stage 3 (the plan states stage {})", s.stage));
    s.stage = 3;
  }
}

double knob(const nlohmann::json& section, const char* key, double fallback) {
  const auto it = section.find(key);
  return it != section.end() && it->is_number() && it->get<double>() >= 0 ? it->get<double>() : fallback;
}

void set_zero(Setup& s) {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  const auto zo = s.plan.deepspeed.find("zero_optimization");
  const auto& z = zo != s.plan.deepspeed.end() && zo->is_object() ? *zo : kEmpty;
  const double h = static_cast<double>(s.model.hidden);
  const bool automatic = s.trainer == "transformers" || s.trainer == "accelerate";   // the Trainer fills "auto" from the hidden size
  s.reduce_bucket = knob(z, "reduce_bucket_size", s.colossal ? 12.0 * 1048576 : automatic ? h * h : 5e8);
  s.allgather_bucket = knob(z, "allgather_bucket_size", 5e8);
  s.prefetch_bucket = knob(z, "stage3_prefetch_bucket_size", automatic ? 0.9 * h * h : 5e7);
  s.max_live = knob(z, "stage3_max_live_parameters", 1e9);
  s.max_reuse = knob(z, "stage3_max_reuse_distance", 1e9);
  s.persistence = knob(z, "stage3_param_persistence_threshold", automatic ? 10 * h : 1e5);
  s.sub_group = knob(z, "sub_group_size", 1e9);
  const auto overlap = z.find("overlap_comm");
  s.overlap_comm = overlap != z.end() && overlap->is_boolean() ? overlap->get<bool>() : s.stage == 3;
  const auto whole = z.find("stage3_gather_16bit_weights_on_model_save");
  s.consolidates_on_save = s.engine == Engine::kZero && s.stage == 3 && whole != z.end() && whole->is_boolean() && whole->get<bool>();
  const auto contiguous = z.find("contiguous_gradients");
  if (contiguous != z.end() && contiguous->is_boolean()) s.contiguous_gradients = contiguous->get<bool>();
  const auto& sched = s.plan.schedule;
  if (sched.reduce_bucket_bytes) s.reduce_bucket = static_cast<double>(*sched.reduce_bucket_bytes) / s.gradient_bytes;
  if (sched.prefetch_bytes) s.prefetch_bucket = static_cast<double>(*sched.prefetch_bytes) / s.compute_bytes;
  if (sched.gather_bucket_bytes) s.allgather_bucket = static_cast<double>(*sched.gather_bucket_bytes) / s.compute_bytes;
  if (sched.keep_resident_below) s.persistence = static_cast<double>(*sched.keep_resident_below);
}

void set_kernels(Setup& s) {
  const auto& j = s.job;
  // A traced graph that is run without fusing keeps what eager code keeps, unless a policy on the graph drops it.
  s.compiled = j.compile != "none" && !(j.compile == "graph" && s.plan.checkpointing.kind == "none");
  s.dialect = dialect_of(j.framework.name, s.trainer, j.framework.trainer_version);
  s.eager_attention = j.attention && *j.attention == "eager";
  const bool kernels_of_package = s.trainer == "transformers" || s.trainer == "accelerate" || s.trainer == "axolotl" || s.trainer == "llama-recipes" || s.trainer == "fsdp_qlora" || s.trainer.empty();
  if (s.engine != Engine::kMegatron && kernels_of_package) {
    // flash_attn takes grouped k and v; SDPA's callers repeat them first
    s.dialect.repeats_kv = !(j.attention && j.attention->rfind("flash", 0) == 0);
    s.dialect.python_gelu = s.trainer == "transformers";
  }
  if (j.fused_kernels) {
    for (const auto& k : *j.fused_kernels) {
      if (k == "swiglu") s.dialect.fused_mlp = true, s.dialect.mlp_in_place = s.engine != Engine::kMegatron;
      if (k == "rms_norm") s.dialect.norm = NormStyle::kFused;
      if (k == "rope") s.dialect.rope_in_place = true;
    }
  }
  // modeling_gpt2.py, modeling_bert.py, modeling_roberta.py, modeling_vit.py take the softmax in the activations' format; autocast has it in
  // fp32 whatever the code says (torch/amp, its list of fp32 operators)
  const auto& family = s.model.family;
  if (!s.autocast && (family == "gpt2" || family == "bert" || family == "roberta" || family == "vit")) s.dialect.softmax_fp32 = false;
  if (s.engine == Engine::kOwn) {
    s.dialect.norm = NormStyle::kFused;
    s.dialect.rope_copies = s.dialect.rope_temporary = 0;
    s.dialect.fused_mlp = true;
  }
  if (s.engine == Engine::kMegatron) {
    const auto it = s.plan.megatron.find("no-gradient-accumulation-fusion");
    if (it != s.plan.megatron.end() && it->is_boolean() && it->get<bool>()) s.dialect.weight_gradient_fused = false;
    if (s.stage == 3) s.dialect.weight_gradient_fused = false;   // Megatron-FSDP: no main buffer of the whole gradient to add to
  }
  if (s.compiled) {                     // inductor fuses the point-wise work
    s.dialect.norm = NormStyle::kFused;
    s.dialect.rope_copies = s.dialect.rope_temporary = 0;
    s.dialect.mlp_in_place = false;
    s.dialect.fused_mlp = true;
    s.dialect.policy_keeps_last = false;
  }
}

}  // namespace

std::int64_t Setup::padded_vocabulary() const {
  if (engine != Engine::kMegatron) return model.vocabulary;
  std::int64_t multiple = 128;
  if (const auto it = plan.megatron.find("make-vocab-size-divisible-by"); it != plan.megatron.end() && it->is_number_integer())
    multiple = std::max<std::int64_t>(1, it->get<std::int64_t>());
  multiple *= tp;
  return (model.vocabulary + multiple - 1) / multiple * multiple;
}

Setup make_setup(const Request& request) {
  Setup s{request.job, request.plan, request.model, request.device};
  set_engine(s);
  set_layout(s);
  set_precision(s);
  set_method(s);
  set_kernels(s);
  set_offload(s);
  set_optimizer(s);
  set_checkpointing(s);
  set_zero(s);
  // trl casts norms to fp32 for a QLoRA on one GPU (peft_module_casting_to_bf16); Linear4bit gives back its input's format, so the
  // residual stream is fp32 from the first block on
  const bool trl_norms = s.quantized && s.trainer == "transformers" && s.stage == 0 && s.compute_bytes == 2;
  if (trl_norms || (request.job.precision.norms && job::bytes_of(*request.job.precision.norms) == 4 && s.quantized && s.compute_bytes == 2)) {
    s.residual_bytes = s.norm_bytes = s.mlp_bytes = 4;
    if (!request.job.precision.norms) s.assumed.emplace_back("precision.norms=fp32 (trl for QLoRA on one GPU)");
  }
  // bitsandbytes MatMul4Bit keeps its input as an attribute of the autograd node (ctx.tensors), which goes when the graph does; litgpt's
  // training loop holds the graph by `loss` until the next one is assigned. Older releases ran the longest batch first and alone.
  s.quantized_context = s.quantized && s.trainer == "litgpt" && s.age >= 20240301;
  const auto custom = s.plan.fsdp.find("custom_sharded_layers");
  s.split_root = s.engine == Engine::kOwn || (s.engine == Engine::kFsdp2 && s.stage == 3 &&
                 ((s.trainer == "torchtitan" && s.age >= 20250728) || s.trainer == "xtuner" || (custom != s.plan.fsdp.end() && custom->is_array() && !custom->empty())));
  // torch honours reshard_after_forward=True of the root module since pytorch 154704; torchtitan asked for it from e4e48349c until it
  // split the root in 83e694105
  s.root_reshards = s.engine == Engine::kFsdp2 && !s.split_root && s.torch_date >= 20250601 &&
                    ((s.trainer == "torchtitan" && s.age >= 20250407) || s.trainer == "accelerate" || s.trainer == "transformers" || s.trainer == "axolotl");
  if (const auto it = s.plan.fsdp.find("limit_all_gathers"); it != s.plan.fsdp.end() && it->is_boolean() && !it->get<bool>()) s.gathers_in_flight = 6;
  if (s.plan.schedule.limit_gathers && !*s.plan.schedule.limit_gathers) s.gathers_in_flight = 6;
  // ProcessGroupNCCL recorded streams by default until torch 2.8 (TORCH_NCCL_AVOID_RECORD_STREAMS)
  s.collectives_record = s.tp > 1 && !s.compiled && (s.engine == Engine::kFsdp1 || s.engine == Engine::kFsdp2) && s.torch_date < 20250401;
  if (s.job.loss.kind == "plain" && s.trainer.empty()) s.assumed.emplace_back("loss as in the framework's own examples (no trainer stated)");
  if (!s.job.attention) s.assumed.emplace_back("attention=sdpa");
  s.loss = loss_rules(s);
  return s;
}

bool checkpointing_unknown(const job::Job& job, const job::Plan& plan) {
  return !plan.checkpointing.stated && plan.checkpointing.kind == "none" && job.framework.name != "shardfit";
}

bool names_module(const std::vector<std::string>& patterns, const std::string& module, const std::string& full_name) {
  for (const auto& p : patterns) {
    const auto ends_with = [&](const std::string& text) {
      return text.size() >= p.size() && text.compare(text.size() - p.size(), p.size(), p) == 0 && (text.size() == p.size() || text[text.size() - p.size() - 1] == '.');
    };
    if (ends_with(module) || full_name.rfind(p, 0) == 0) return true;
    if (p.find('*') != std::string::npos) {      // '*' stands for one component
      std::size_t a = 0, b = 0;
      bool ok = true;
      while (a < p.size() && ok) {
        const auto pa = p.find('.', a), fb = full_name.find('.', b);
        const auto part = p.substr(a, pa == std::string::npos ? std::string::npos : pa - a);
        if (b > full_name.size()) {
          ok = false;
          break;
        }
        const auto have = full_name.substr(b, fb == std::string::npos ? std::string::npos : fb - b);
        ok = part == "*" || part == have;
        a = pa == std::string::npos ? p.size() : pa + 1;
        b = fb == std::string::npos ? full_name.size() + 1 : fb + 1;
      }
      if (ok) return true;
    }
  }
  return false;
}

}  // namespace shardfit::memory
