#include "selector/time/work.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "regions/base/text.hpp"
#include "selector/time/optimizer_step.hpp"

namespace shardfit::timing {
namespace {

using model::Op;
using model::OpKind;

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Whether a user's target ("q_proj", "self_attn.q_proj", "all-linear") names this operator's module, or one of the
// modules that it fuses.
bool targeted(const std::vector<std::string>& targets, const Op& op) {
  for (const std::string& target : targets) {
    if (target == "all-linear" || target == op.module || contains(op.fused_targets, target)) return true;
    if (op.module.size() > target.size() && op.module.ends_with(target) &&
        op.module[op.module.size() - target.size() - 1] == '.')
      return true;
  }
  return false;
}

bool component_matches(std::string_view pattern, std::string_view text) {
  const auto star = pattern.find('*');
  if (star == pattern.npos) return pattern == text;
  const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  return text.size() >= head.size() + tail.size() && text.starts_with(head) && text.ends_with(tail);
}

// formats-runtime.md: names or module prefixes matched whole at dots, '*' within one component.
bool pattern_matches(const std::string& pattern, const std::string& name) {
  const auto want = split(pattern, '.'), have = split(name, '.');
  if (want.size() > have.size()) return false;
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!component_matches(want[i], have[i])) return false;
  return true;
}

bool trained(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return pattern_matches(p, name); });
}

// Output projections read what attention, an activation or the experts produced; all other products read the residual
// stream.
bool reads_inner(const model::Block& block, const Op& op) {
  if (op.in.empty()) return false;
  model::TensorId tensor = op.in[0];
  for (int hops = 0; hops < 16; ++hops) {
    const Op* producer = nullptr;
    for (const Op& candidate : block.ops)
      for (model::TensorId out : candidate.outs)
        if (out == tensor) producer = &candidate;
    if (!producer || producer == &op) return false;
    switch (producer->kind) {
      case OpKind::kAttention:
      case OpKind::kActivation:
      case OpKind::kGatedActivation:
      case OpKind::kExperts:
      case OpKind::kSsm: return true;
      case OpKind::kDropout:
      case OpKind::kScale:
      case OpKind::kMultiply:
      case OpKind::kNorm:
        if (producer->in.empty()) return false;
        tensor = producer->in[0];
        break;
      default: return false;
    }
  }
  return false;
}

double width(const model::Block& block, const std::vector<model::TensorId>& ids) {
  return ids.empty() || ids[0] < 0 || ids[0] >= static_cast<int>(block.tensors.size())
             ? 0
             : static_cast<double>(block.tensors[ids[0]].width);
}

model::Space space_of(const model::Block& block, const Op& op) {
  return op.in.empty() || op.in[0] < 0 || op.in[0] >= static_cast<int>(block.tensors.size())
             ? model::Space::kTokens
             : block.tensors[op.in[0]].space;
}

// Share of a block's instances whose parameter `index` is trained (partial fine-tuning); 1 or 0 for the other methods.
struct Training {
  const job::Method& method;
  bool frozen;
  double weight_gradient(const model::Block& block, const Op& op, double first, double count) const {
    if (frozen) return 0;
    if (method.kind != job::MethodKind::kPartial) return 1;
    if (op.params.empty()) return 0;
    const std::string& name = block.parameters[op.params[0]].name;
    double hits = 0;
    for (double i = 0; i < count; ++i) {
      std::string prefix = block.prefix;
      if (const auto slot = prefix.find("{}"); slot != prefix.npos)
        prefix.replace(slot, 2, std::to_string(static_cast<long>(first + i)));
      hits += trained(method.trainable, prefix.empty() ? name : prefix + "." + name);
    }
    return count > 0 ? hits / count : 0;
  }
};

BlockWork block_work(const model::Block& block, const model::Run& run, double first, bool encoder,
                     const Training& training, Work& work) {
  BlockWork out;
  out.count = static_cast<double>(run.count);
  out.encoder = encoder;
  out.parameters = static_cast<double>(block.elements());
  for (const auto& parameter : block.parameters)
    if (parameter.kind == model::Parameter::Kind::kExpert)
      out.expert_parameters += static_cast<double>(parameter.elements());
  const bool adapters = training.method.kind == job::MethodKind::kLora ||
                        training.method.kind == job::MethodKind::kQlora ||
                        training.method.kind == job::MethodKind::kIa3;
  const double rank = static_cast<double>(std::max<std::int64_t>(training.method.rank, 1));
  const bool ia3 = training.method.kind == job::MethodKind::kIa3;
  bool shared_as_linears = false;
  for (const Op& op : block.ops)
    if (op.kind == OpKind::kLinear && op.module.find("shared_expert") != op.module.npos) shared_as_linears = true;
  for (const Op& op : block.ops) {
    switch (op.kind) {
      case OpKind::kLinear: {
        Linear linear;
        linear.in = static_cast<double>(op.in_features);
        linear.out = static_cast<double>(op.out_features);
        linear.space = space_of(block, op);
        linear.row_parallel = reads_inner(block, op);
        linear.adapter =
            adapters && (targeted(training.method.targets, op) || (ia3 && targeted(training.method.feedforward, op)));
        linear.weight_gradient = training.weight_gradient(block, op, first, out.count);
        if (linear.adapter) work.adapter_parameters += out.count * (ia3 ? linear.out : rank * (linear.in + linear.out));
        out.linears.push_back(linear);
        break;
      }
      case OpKind::kNorm: (op.rms ? out.rms_width : out.layer_norm_width) += width(block, op.in); break;
      case OpKind::kRope:
        out.rope_width += width(block, op.in) * (op.rotary_fraction > 0 ? op.rotary_fraction : 1);
        break;
      case OpKind::kAttention: {
        AttentionCore core;
        core.heads = static_cast<double>(op.attention.heads);
        core.kv_heads = static_cast<double>(op.attention.kv_heads > 0 ? op.attention.kv_heads : op.attention.heads);
        core.query_dim = static_cast<double>(op.attention.head_dim);
        core.value_dim =
            static_cast<double>(op.attention.value_head_dim > 0 ? op.attention.value_head_dim : op.attention.head_dim);
        core.causal = op.attention.causal && !op.attention.cross;
        core.cross = op.attention.cross;
        core.window = static_cast<double>(op.attention.window.value_or(0));
        core.dropout = op.attention.dropout;
        out.head_width += (core.heads + core.kv_heads) * core.query_dim;
        if (work.kv_width == 0) work.kv_width = core.kv_heads * core.query_dim;
        out.attention.push_back(core);
        break;
      }
      case OpKind::kGatedActivation:
        (op.activation == model::Activation::kSwigluOai ? out.clamped_gated_width : out.gated_width) +=
            width(block, op.outs);
        break;
      case OpKind::kActivation:
        (op.activation == model::Activation::kGeluTanhPython ? out.python_gelu_width : out.activation_width) +=
            width(block, op.in);
        break;
      case OpKind::kAdd:
        if (op.is_residual) out.residual_width += width(block, op.in);
        break;
      case OpKind::kDropout:
        if (op.dropout > 0) out.dropout_width += width(block, op.in);
        break;
      case OpKind::kScale:
        if (!op.params.empty()) out.scale_width += width(block, op.in);
        break;
      case OpKind::kRouter: {
        Linear router;
        router.in = width(block, op.in);
        router.out = op.out_features > 0 ? static_cast<double>(op.out_features) : static_cast<double>(op.moe.experts);
        router.weight_gradient = training.weight_gradient(block, op, first, out.count);
        if (router.in > 0 && router.out > 0) out.linears.push_back(router);
        break;
      }
      case OpKind::kExperts: {
        Experts e;
        e.experts = static_cast<double>(op.moe.experts);
        e.top_k = static_cast<double>(op.moe.top_k);
        e.hidden = width(block, op.in);
        e.intermediate = static_cast<double>(op.moe.intermediate);
        e.shared = shared_as_linears ? 0 : static_cast<double>(op.moe.shared_intermediate);
        e.gated = op.moe.gated;
        e.clamped = op.moe.activation == model::Activation::kSwigluOai;
        e.adapter = adapters &&
                    (contains(training.method.targets, "all-linear") ||
                     contains(training.method.targets, "gate_proj") || contains(training.method.targets, "up_proj") ||
                     contains(training.method.targets, "down_proj") || targeted(training.method.targets, op));
        e.weight_gradient = training.weight_gradient(block, op, first, out.count);
        if (e.adapter && !ia3)
          work.adapter_parameters += out.count * e.experts * rank * 3 * (e.hidden + e.intermediate);
        const double inner = e.top_k * e.intermediate + e.shared;
        if (e.clamped) out.clamped_gated_width += inner;
        else if (e.gated) out.gated_width += inner;
        else out.activation_width += inner;
        out.routed_width += e.top_k * e.hidden;
        out.experts.push_back(e);
        work.mixture = true;
        break;
      }
      case OpKind::kSsm: {
        // Chunked scan (Mamba-2, arXiv 2405.21060 section 6): inside a chunk like attention over `chunk` tokens,
        // between chunks through the state.
        const double heads = static_cast<double>(op.ssm.heads), dim = static_cast<double>(op.ssm.head_dim),
                     state = static_cast<double>(op.ssm.state),
                     chunk = static_cast<double>(op.ssm.chunk > 0 ? op.ssm.chunk : 256);
        out.scan_flops += heads * (2 * chunk * (state + dim) + 4 * dim * state);
        out.scan_width += static_cast<double>(op.ssm.inner > 0 ? op.ssm.inner : op.ssm.heads * op.ssm.head_dim);
        break;
      }
      case OpKind::kConvolution: out.scan_width += width(block, op.in); break;
      default: break;
    }
  }
  return out;
}

Engine engine_of(const std::string& name) {
  if (name == "shardfit") return Engine::kShardfit;
  if (name == "fsdp1") return Engine::kFsdp1;
  if (name == "fsdp2") return Engine::kFsdp2;
  if (name == "deepspeed") return Engine::kDeepspeed;
  if (name == "ddp") return Engine::kDdp;
  if (name == "megatron") return Engine::kMegatron;
  return Engine::kOther;
}

AttentionWord attention_of(const std::string& word) {
  if (word == "flash1") return AttentionWord::kFlash1;
  if (word == "flash2") return AttentionWord::kFlash2;
  if (word == "flash3") return AttentionWord::kFlash3;
  if (word == "cudnn") return AttentionWord::kCudnn;
  if (word == "flex") return AttentionWord::kFlex;
  if (word == "sdpa") return AttentionWord::kSdpa;
  if (word == "eager") return AttentionWord::kEager;
  return AttentionWord::kFlash;
}

int version_number(const std::string& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return -1;
  char* end = nullptr;
  const long major = std::strtol(text.c_str(), &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return static_cast<int>(std::clamp(major, 0L, 1000000L) * 1000 + std::clamp(minor, 0L, 999L));
}

// Bytes per element on the wire and the type that linear layers run in.
void set_precision(const job::Precision& precision, Work& work) {
  const std::string& name = precision.name;
  const bool mixed = name == "bf16-mixed" || name == "fp16-mixed";
  job::DType compute = name == "fp32"         ? job::DType::kFp32
                       : name == "fp16-mixed" ? job::DType::kFp16
                                              : job::DType::kBf16;
  compute = precision.compute.value_or(compute);
  work.compute = compute == job::DType::kFp32  ? Compute::kFp32
                 : compute == job::DType::kFp8 ? Compute::kFp8
                                               : Compute::kHalf;
  work.autocast = precision.autocast.value_or(mixed);
  const double gradients = name.empty() ? 2 : mixed || name == "fp32" ? 4 : 2;
  work.gradient_bytes = precision.gradients ? job::bytes_of(*precision.gradients) : gradients;
  work.reduce_bytes = precision.reduce      ? job::bytes_of(*precision.reduce)
                      : precision.gradients ? work.gradient_bytes
                                            : gradients;
  if (work.reduce_bytes < 1) work.reduce_bytes = 2;
  work.gather_bytes = work.compute == Compute::kFp32 ? 4 : 2;
}

// Reads and writes of the logits, bytes per entry, forward and backward (fitted; Hugging Face upcasts to fp32, compiled
// or chunked losses do not keep the fp32 copy, Megatron's vocabulary-parallel loss works in place, fused linear losses
// never store logits).
double loss_bytes(const Work& work, const std::string& kind) {
  if (work.engine == Engine::kMegatron) return 24;
  if (kind == "chunked") return 30;
  if (kind == "fused" || kind == "fused_linear") return 14;
  return work.fused ? 30 : 40;
}

}  // namespace

Work make_work(const job::Job& job, const model::Model& model) {
  Work work;
  work.engine = engine_of(job.framework.name);
  work.label = to_lower(job.framework.label);
  work.trainer = to_lower(job.framework.trainer);
  work.version = version_number(job.framework.version);
  set_precision(job.precision, work);

  const auto kind = job.method.kind;
  work.frozen = kind == job::MethodKind::kLora || kind == job::MethodKind::kQlora || kind == job::MethodKind::kIa3;
  work.quantized = kind == job::MethodKind::kQlora;
  work.adapter_dropout = job.method.dropout > 0;
  work.fused = work.engine == Engine::kMegatron || (job.compile != "none" && !job.compile.empty()) ||
               (work.engine == Engine::kFsdp2 && !job.fused_kernels);
  const std::vector<std::string> kernels = job.fused_kernels.value_or(std::vector<std::string>{});
  work.fused_norm = work.fused || contains(kernels, "rms_norm");
  work.fused_gate = work.fused || contains(kernels, "swiglu");
  work.fused_rope = work.fused || contains(kernels, "rope");
  work.ships_kernels = !job.fused_kernels && (work.engine == Engine::kFsdp2 || work.engine == Engine::kMegatron);
  if (work.ships_kernels) work.assumed.push_back("fused_kernels=all (what this framework ships)");

  const Training training{job.method, work.frozen};
  double first_decoder = 0, first_encoder = 0;
  for (const model::Run& run : model.encoder) {
    work.blocks.push_back(block_work(model.blocks[run.block], run, first_encoder, true, training, work));
    first_encoder += static_cast<double>(run.count);
  }
  for (const model::Run& run : model.body) {
    work.blocks.push_back(block_work(model.blocks[run.block], run, first_decoder, false, training, work));
    first_decoder += static_cast<double>(run.count);
  }
  for (const BlockWork& block : work.blocks) {
    work.layers += block.count;
    work.block_parameters += block.count * block.parameters;
    work.expert_parameters += block.count * block.expert_parameters;
  }
  work.hidden = static_cast<double>(model.hidden);
  work.parameters = static_cast<double>(model.parameters());
  for (const Op& op : model.head.ops) {
    if (op.kind == OpKind::kNorm) work.head_norm_width += width(model.head, op.in);
    if (op.kind != OpKind::kLinear) continue;
    if (op.out_features == model.vocabulary && model.vocabulary > 0) {
      work.logits_width = static_cast<double>(op.out_features);
      continue;
    }
    Linear linear;
    linear.in = static_cast<double>(op.in_features);
    linear.out = static_cast<double>(op.out_features);
    linear.space = space_of(model.head, op);
    linear.weight_gradient = training.weight_gradient(model.head, op, 0, 1);
    work.head.push_back(linear);
  }

  work.trainable = work.parameters;
  if (work.frozen) {
    work.trainable = work.adapter_parameters;
    for (const std::string& module : job.method.modules_to_save)
      if (module.find("embed") != module.npos || module.find("lm_head") != module.npos ||
          module.find("wte") != module.npos)
        work.trainable += work.hidden * static_cast<double>(model.vocabulary);
  } else if (kind == job::MethodKind::kPartial) {
    double sum = 0;
    int first_unit = static_cast<int>(work.layers);
    for (const auto& parameter : model::all_parameters(model)) {
      if (!trained(job.method.trainable, parameter.name)) continue;
      double elements = 1;
      for (auto d : parameter.shape) elements *= static_cast<double>(d);
      sum += elements;
      first_unit = std::min(first_unit, std::max(parameter.unit, 0));
    }
    work.trainable = sum;
    work.backward_share = work.layers > 0 ? (work.layers - first_unit) / work.layers : 1;
  }

  if (work.quantized) {
    // Bytes moved to expand one parameter (fitted): torchao's nf4 under compile, bitsandbytes' nf4, GPTQ's int4.
    const bool compiled =
        job.compile != "none" && !job.compile.empty() && (work.engine == Engine::kDdp || work.engine == Engine::kFsdp2);
    work.dequantize_bytes = job.method.quantization == job::DType::kInt4 ? 20.66 : compiled ? 13.13 : 11.69;
    work.gather_bytes = job.method.quantization == job::DType::kInt8 ? 1.03 : 0.53;
  }
  set_optimizer(job, work);

  if (job.attention) {
    work.attention = attention_of(*job.attention);
  } else {
    work.attention = work.engine == Engine::kMegatron ? AttentionWord::kFlash : AttentionWord::kSdpa;
    work.assumed.push_back(work.engine == Engine::kMegatron ? "attention=flash (Megatron default)"
                                                            : "attention=sdpa (transformers default)");
  }
  // FSDP1 with "flash" and no version: llm-foundry's MPT tables of 2023 ran the Triton port; for anything else today's
  // kernel is meant. torch 2.2 (January 2024) brought FlashAttention-2.
  work.old_flash = work.engine == Engine::kFsdp1 && (work.version >= 0 ? work.version < 2002 : model.family == "mpt");
  work.loss_bytes = loss_bytes(work, job.loss.kind);
  work.loss_rows = static_cast<double>(job.loss.chunk_tokens.value_or(0));
  work.loss_chunks = static_cast<double>(job.loss.chunks.value_or(0));
  work.low_precision_norm = [&] {
    const auto fact = model.facts.find("low_precision_layernorm");
    return fact != model.facts.end() && fact->second != 0;
  }();
  work.every_token_every_expert = model.model_type.starts_with("llama4");

  work.sequence = static_cast<double>(job.sequence_length);
  work.decoder_sequence = model.encoder_decoder
                              ? static_cast<double>(job.decoder_sequence_length.value_or(job.sequence_length))
                              : work.sequence;
  const double batch = static_cast<double>(job.global_batch_sequences);
  work.batch_tokens = batch * (model.encoder_decoder ? work.sequence + work.decoder_sequence : work.sequence);
  return work;
}

}  // namespace shardfit::timing
