#include "selector/memory/setup_parts.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/gather_parts.hpp"

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
  if (s.engine == Engine::kMegatron) set_megatron_layout(s);
  s.expert_shard = s.stage == 0 ? 1 : std::max<std::int64_t>(1, s.gpus / (s.pp * s.etp * s.ep));
  if (s.ep == 1 && s.engine != Engine::kMegatron) s.expert_shard = s.shard;
  s.micro_batch = std::max<std::int64_t>(1, p.micro_batch);
  s.accumulation = std::max<std::int64_t>(1, p.gradient_accumulation);
  s.sequence = std::max<std::int64_t>(1, s.job.sequence_length / s.cp);
  s.decoder_sequence = std::max<std::int64_t>(1, s.job.decoder_sequence_length.value_or(s.job.sequence_length) / s.cp);
  s.tokens = s.micro_batch * s.sequence;
  s.sequence_parallel = p.sequence_parallel && s.tp > 1;
  s.no_sync = (p.accumulate_without_sync && s.accumulation > 1) || (s.engine == Engine::kFsdp2 && s.pp > 1);
  // litgpt finetune/*.py, fa5d73e3 to 73baa2d5: get_batch(longest_seq_ix if iter_num == 0)
  s.longest_first = s.trainer == "litgpt" && s.age >= 20230621 && s.age < 20240229;
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
  // torch/amp: fp32 embeddings start an fp32 residual stream; a gradient comes in the format of the cast weight and is cast to its own
  if (s.autocast_cache && s.compute_bytes == 2 && s.engine == Engine::kDdp) {
    s.residual_bytes = 4;
    s.weight_gradient_bytes = 4;
  }
}

void set_method(Setup& s) {
  const auto& m = s.job.method;
  s.quantized = m.kind == job::MethodKind::kQlora;
  if (s.quantized) {
    // bitsandbytes: one fp32 scale for 64 weights; double quantisation keeps it in 8 bit with an fp32 scale for 256 of them
    const double scales = m.double_quantization ? 1.0 / 64 + 4.0 / (64 * 256) : 4.0 / 64;
    // LLM.int8: a scale a row; GPTQ (int4): 16-bit scales and packed zeros for groups of 128
    s.quantized_bytes = job::bytes_of(m.quantization) + (m.quantization == DType::kInt8 ? 4.0 / 4096 : m.quantization == DType::kInt4 ? 2.5 / 128 : scales);
  }
  if (m.kind == job::MethodKind::kLora || m.kind == job::MethodKind::kQlora || m.kind == job::MethodKind::kIa3) {
    s.adapters.any = true;
    s.adapters.ia3 = m.kind == job::MethodKind::kIa3;
    s.adapters.rank = m.rank > 0 ? m.rank : 8;
    s.adapters.dropout = m.dropout > 0;
    s.adapters.dora = m.dora;
    s.adapters.dora_again = s.age < 447;   // the transformers of PEFT 0.14's month
    if (m.adapter_dtype) {
      s.adapters.bytes = static_cast<int>(job::bytes_of(*m.adapter_dtype));
    } else {
      s.adapters.bytes = s.trainer == "transformers" ? 4 : 2;   // PEFT: autocast_adapter_dtype upcasts them
      s.assumed.push_back(fmt::format("method.adapter_dtype={} ({})", s.adapters.bytes == 4 ? "fp32" : "bf16", s.trainer.empty() ? "compute format" : s.trainer + " default"));
    }
    s.adapters.own_units = s.trainer != "litgpt";
  }
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

}  // namespace

std::int64_t Setup::padded_vocabulary() const {
  if (engine != Engine::kMegatron) return model.vocabulary;
  const std::int64_t multiple = std::max<std::int64_t>(1, megatron_number(plan, "make-vocab-size-divisible-by", 128)) * tp;
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
  if (s.engine == Engine::kMegatron) {
    set_megatron(s);
    check_megatron(s);
  }
  check_tensor_parallel(s);
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
  s.gather_parts = has_gather_parts(s) && s.stage == 3;
  if ((s.engine == Engine::kFsdp1 || s.engine == Engine::kFsdp2) && s.stage == 3 && parts_split_root(s)) s.split_root = true;
  s.root_reshards = s.engine == Engine::kFsdp2 && !s.split_root && s.torch_date >= 20250601 &&
                    ((s.trainer == "torchtitan" && s.age >= 20250407) || s.trainer == "accelerate" || s.trainer == "transformers" || s.trainer == "axolotl");
  if (s.engine == Engine::kFsdp1) {
    s.flat_whole = s.stage == 0;
    for (const char* key : {"backward_prefetch", "fsdp_backward_prefetch"})
      if (const auto it = s.plan.fsdp.find(key); it != s.plan.fsdp.end()) s.prefetch_backward = it->is_string() && *it == "BACKWARD_PRE";
    for (const char* key : {"forward_prefetch", "fsdp_forward_prefetch"})
      if (const auto it = s.plan.fsdp.find(key); it != s.plan.fsdp.end()) s.forward_prefetch = it->is_boolean() && it->get<bool>();
  }
  if (const auto it = s.plan.fsdp.find("limit_all_gathers"); it != s.plan.fsdp.end() && it->is_boolean() && !it->get<bool>()) s.gathers_in_flight = 6;
  if (s.plan.schedule.limit_gathers && !*s.plan.schedule.limit_gathers) s.gathers_in_flight = 6;
  // ProcessGroupNCCL recorded streams by default until torch 2.8 (TORCH_NCCL_AVOID_RECORD_STREAMS); torchtitan has told it not to since
  // e62573d4c (utils.py, init_distributed)
  const bool avoids = s.trainer == "torchtitan" && s.age >= 20240410;
  s.collectives_record = s.tp > 1 && !avoids && (s.engine == Engine::kFsdp1 || s.engine == Engine::kFsdp2) && s.torch_date < 20250401;
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
    const bool begins = full_name.compare(0, p.size(), p) == 0 && (full_name.size() == p.size() || full_name[p.size()] == '.' || p.empty() || p.back() == '.');
    if (ends_with(module) || begins) return true;
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
