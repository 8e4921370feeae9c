// What Megatron's own flags (the plan's section "megatron") and defaults change, and the combinations that it refuses. Sources:
// megatron/core/transformer/transformer_config.py, megatron/training/arguments.py and megatron/core/optimizer at d98e8a64dd.
#include <algorithm>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/setup_parts.hpp"

namespace shardfit::memory {

const nlohmann::json* megatron_value(const job::Plan& plan, std::string_view flag) {
  std::string name(flag);
  if (const auto it = plan.megatron.find(name); it != plan.megatron.end()) return &*it;
  std::replace(name.begin(), name.end(), '-', '_');   // the names of the Python attributes
  if (const auto it = plan.megatron.find(name); it != plan.megatron.end()) return &*it;
  return nullptr;
}
std::int64_t megatron_number(const job::Plan& plan, std::string_view flag, std::int64_t fallback) {
  const auto* v = megatron_value(plan, flag);
  return v && v->is_number() && v->get<double>() >= 0 && v->get<double>() < 1e15 ? v->get<std::int64_t>() : fallback;
}
bool megatron_flag(const job::Plan& plan, std::string_view flag) {
  const auto* v = megatron_value(plan, flag);
  return v && v->is_boolean() && v->get<bool>();
}
std::string megatron_word(const job::Plan& plan, std::string_view flag) {
  const auto* v = megatron_value(plan, flag);
  return v && v->is_string() ? v->get<std::string>() : std::string();
}

namespace {

// "fp32", "bf16", "fp16", "fp8" as --main-grads-dtype and its like take them.
double bytes_of_word(const std::string& word, double fallback) { return word == "fp32" ? 4 : word == "bf16" || word == "fp16" ? 2 : word == "fp8" ? 1 : fallback; }

[[noreturn]] void refuse(const char* where, const std::string& message, const std::string& remedy) { throw Error("unsupported_combination", where, message, remedy); }

}  // namespace

void set_megatron_layout(Setup& s) {
  const auto& p = s.plan;
  s.etp = std::max<std::int64_t>(1, megatron_number(p, "expert-tensor-parallel-size", s.tp));
  s.shard = p.sharding.stage == 0 ? 1 : p.sharding.shard_degree * s.cp;   // the distributed optimizer shards over context parallelism too
  s.predictions = megatron_number(p, "mtp-num-layers", -1);
  if (s.predictions < 0) {
    const auto fact = s.model.facts.find("num_nextn_predict_layers");
    s.predictions = fact != s.model.facts.end() ? static_cast<std::int64_t>(fact->second) : 0;
    if (s.predictions > 0) s.assumed.push_back(fmt::format("megatron.mtp-num-layers={} (the model's num_nextn_predict_layers)", s.predictions));
  }
  s.predictions = std::min<std::int64_t>(s.predictions, 64);
  if (s.pp > 1 && !p.pipeline.virtual_stages) {
    const std::int64_t stages = megatron_number(p, "num-virtual-stages-per-pipeline-rank"), layers = megatron_number(p, "num-layers-per-virtual-pipeline-stage");
    if (stages > 0) s.vp = stages;
    else if (layers > 0) s.vp = std::max<std::int64_t>(1, s.model.block_count() / (s.pp * layers));
  }
  s.vp = std::min<std::int64_t>(s.vp, 1 << 20);
  s.embedding_as_block = megatron_flag(p, "account-for-embedding-in-pipeline-split");
  s.loss_as_block = megatron_flag(p, "account-for-loss-in-pipeline-split");
  const std::int64_t blocks = s.model.block_count();
  bool stated = s.embedding_as_block || s.loss_as_block;
  for (const char* flag : {"pipeline-model-parallel-layout", "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"}) stated = stated || megatron_value(p, flag);
  // Models such as Llama 3.1 405B were made two blocks short for this split.
  if (s.pp > 1 && !stated && blocks % (s.pp * s.vp) != 0 && (blocks + 2) % (s.pp * s.vp) == 0) {
    s.embedding_as_block = s.loss_as_block = true;
    s.assumed.push_back(fmt::format("megatron.account-for-embedding-in-pipeline-split and account-for-loss-in-pipeline-split=true ({} blocks do not divide by {} stages, {} do)", blocks, s.pp * s.vp, blocks + 2));
  }
}

void set_megatron(Setup& s) {
  const auto& p = s.plan;
  const bool aware = megatron_flag(p, "use-precision-aware-optimizer");
  const auto& precision = s.job.precision;
  if (megatron_flag(p, "grad-reduce-in-bf16") && !precision.gradients) s.gradient_bytes = 2;
  if (aware) {
    // optimizer/__init__.py: TE's FusedAdam with moments and gradients in formats of their own; an fp32 master weight keeps only the 16
    // bits that the bf16 weight does not have (store_param_remainders)
    s.gradient_bytes = bytes_of_word(megatron_word(p, "main-grads-dtype"), s.gradient_bytes);
    const std::string master = megatron_word(p, "main-params-dtype");
    if (s.master_bytes > 0) s.master_bytes = bytes_of_word(master, 4) == 4 && s.parameter_bytes == 2 ? 2 : bytes_of_word(master, 4);
    if (!s.job.optimizer.states) s.state_bytes = (bytes_of_word(megatron_word(p, "exp-avg-dtype"), 4) + bytes_of_word(megatron_word(p, "exp-avg-sq-dtype"), 4)) / 2;
  }
  // transformer_block.py _checkpointed_forward: "block" recomputes the first blocks of each chunk and keeps the others, "uniform" keeps
  // the input of every so many blocks and recomputes them together; tensor_parallel/random.py CheckpointFunction runs a forward to its end
  if (!s.plan.checkpointing.reentrant) s.reentrant = true;
  if (const std::int64_t layers = megatron_number(p, "recompute-num-layers"); s.checkpoint == Setup::Checkpoint::kFull && layers > 0) {
    const std::int64_t chunk = std::max<std::int64_t>(1, s.model.block_count() / (s.pp * s.vp));
    if (megatron_word(p, "recompute-method") == "block") {
      s.checkpoint = Setup::Checkpoint::kFirst;
      s.checkpoint_first = layers;
      s.chunk_blocks = chunk;
    } else {
      s.recompute_group = std::min(layers, chunk);
    }
  }
  // Transformer Engine's linear layers in FP8 (pytorch/module/base.py quantize_weight, layernorm_linear.py): backward keeps the input
  // column-wise, one byte an element and its scales; a copy of each weight row-wise and column-wise stays from the first micro batch on.
  // From Blackwell on one copy serves both where a tensor has one scale (utils.py is_non_tn_fp8_gemm_supported). FP8 parameters
  // (fp8-param-gather) are those copies themselves, in place of the 16-bit weight.
  if ((precision.compute && *precision.compute == job::DType::kFp8) || !megatron_word(p, "fp8-format").empty()) {
    const std::string flag = megatron_word(p, "fp8-recipe"), recipe = !flag.empty() ? flag : precision.fp8_recipe.value_or("delayed");
    const bool block = recipe == "mxfp8" || recipe == "blockwise";
    const double scales = recipe == "mxfp8" ? 1.0 / 32 : recipe == "blockwise" ? 4.0 / 128 : 0;
    const double cc = s.device.compute_capability_number();
    const bool one_copy = !block && ((cc >= 10 && cc < 12) || cc >= 13);
    s.fp8_input_bytes = 1 + scales;
    s.fp8_weight_bytes = (one_copy ? 1 : 2) * (1 + scales);
    if (megatron_flag(p, "fp8-param-gather")) s.fp8_weight_bytes = std::max(0.0, s.fp8_weight_bytes - s.parameter_bytes);
    if (flag.empty() && !precision.fp8_recipe) s.assumed.emplace_back("precision.fp8_recipe=delayed (Megatron's default)");
  }
  // grouped keys and values are written out for all heads where the scores are (core/transformer/dot_product_attention.py, Transformer
  // Engine's UnfusedDotProductAttention)
  if (s.eager_attention) s.dialect.repeats_kv = true;
  // Where their softmax kernels do not take the shape (softmax.py and fusions/fused_softmax.py is_kernel_available) or are turned off, torch
  // computes it in fp32
  const std::int64_t batches = s.micro_batch * std::max<std::int64_t>(1, s.model.attention.heads / s.tp);
  s.dialect.softmax_fp32 = megatron_flag(p, "no-masked-softmax-fusion") || s.sequence <= 16 || s.sequence >= 16384 || s.sequence % 8 != 0 || batches % 4 != 0;
  // the products add to the main gradient buffer unless told otherwise; Megatron-FSDP has no whole buffer to add to
  if (megatron_flag(p, "no-gradient-accumulation-fusion") || s.stage == 3) s.dialect.weight_gradient_fused = false;
}

void check_megatron(const Setup& s) {
  const auto& a = s.model.attention;
  constexpr std::int64_t kMostMultiple = 1 << 20;
  if (const std::int64_t multiple = megatron_number(s.plan, "make-vocab-size-divisible-by", 128); multiple > kMostMultiple)
    throw Error("out_of_range", "/plan/megatron/make-vocab-size-divisible-by", fmt::format("a vocabulary padded to a multiple of {}", multiple), fmt::format("give at most {}; Megatron's default is 128", kMostMultiple));
  if (s.sequence_parallel && s.sequence % s.tp != 0)
    refuse("/plan/sequence_parallel", fmt::format("sequences of {} positions do not divide by {} tensor parallel ranks", s.sequence, s.tp), "choose a sequence_length that is a multiple of tensor_parallel x context_parallel");
  if (s.cp > 1 && s.job.sequence_length % (2 * s.cp) != 0)
    refuse("/plan/context_parallel", fmt::format("sequence_length {} does not divide by twice the {} context parallel ranks", s.job.sequence_length, s.cp), "choose a sequence_length that is a multiple of 2 x context_parallel");
  if (s.cp > 1 && s.eager_attention && megatron_word(s.plan, "transformer-impl") == "local")
    refuse("/plan/context_parallel", "context parallelism needs Transformer Engine's attention, megatron.transformer-impl is local", "set transformer-impl to transformer_engine or context_parallel to 1");
  std::int64_t experts = 0;
  for (const auto& block : s.model.blocks)
    for (const auto& op : block.ops)
      if (op.kind == model::OpKind::kExperts) experts = std::max(experts, op.moe.experts);
  if (s.ep > 1 && experts == 0) refuse("/plan/expert_parallel", fmt::format("expert_parallel is {}, the model has no experts", s.ep), "set expert_parallel to 1");
  if (experts > 0 && experts % s.ep != 0)
    refuse("/plan/expert_parallel", fmt::format("{} experts do not divide by {} expert parallel ranks", experts, s.ep), "choose an expert_parallel that divides the experts");
  if (s.gpus % (s.pp * s.etp * s.ep) != 0)
    refuse("/plan/expert_parallel", fmt::format("{} GPUs do not divide by {} pipeline x {} expert tensor x {} expert parallel ranks", s.gpus, s.pp, s.etp, s.ep), "lower expert_parallel or megatron.expert-tensor-parallel-size");
  // moe_layer.py forward
  if (experts > 0 && s.tp > 1 && !s.sequence_parallel)
    refuse("/plan/sequence_parallel", "Megatron trains experts with tensor parallelism only under sequence parallelism", "set sequence_parallel to true or tensor_parallel to 1");
  if (s.tp > 1 && a.kv_heads > 0 && a.kv_heads % s.tp != 0 && s.tp % a.kv_heads != 0)
    refuse("/plan/tensor_parallel", fmt::format("{} key/value heads neither divide by nor into {} tensor parallel ranks", a.kv_heads, s.tp), "choose a tensor_parallel that is a multiple or a divisor of them");
  const std::string granularity = megatron_word(s.plan, "recompute-granularity"), method = megatron_word(s.plan, "recompute-method");
  if (granularity == "selective" && !method.empty())
    refuse("/plan/megatron/recompute-method", "recompute-method goes with full recomputation only, recompute-granularity is selective", "leave recompute-method out or set recompute-granularity to full");
}

void check_tensor_parallel(const Setup& s) {
  // DeepSpeed's automatic tensor parallelism gives some ranks one head more (module_inject/tp_shard.py); what an engine without a
  // profile does is not known.
  if (s.tp <= 1 || s.engine == Engine::kZero || s.job.framework.name == "other") return;
  const auto& a = s.model.attention;
  if (a.heads > 0 && a.heads % s.tp != 0)
    refuse("/plan/tensor_parallel", fmt::format("{} attention heads do not divide by {} tensor parallel ranks", a.heads, s.tp), "choose a tensor_parallel that divides the model's heads");
  if (s.engine != Engine::kMegatron && a.kv_heads > 0 && a.kv_heads % s.tp != 0)
    refuse("/plan/tensor_parallel", fmt::format("{} key/value heads do not divide by {} tensor parallel ranks", a.kv_heads, s.tp), "choose a tensor_parallel that divides them");
}

}  // namespace shardfit::memory
