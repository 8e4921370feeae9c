// The loss as each trainer writes it: which copies of the logits exist at once.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {

LossRules loss_rules(const Setup& s) {
  using Kind = LossRules::Kind;
  using Float = LossRules::Float;
  const auto& L = s.job.loss;
  const auto& compile = s.job.compile;
  const bool compiled_loss = compile == "block+loss" || compile == "model" || (compile == "graph" && s.graph == Setup::Graph::kNone);
  const auto& type = s.model.family;
  LossRules r;
  if (L.kind == "chunked") {
    r.kind = Kind::kChunked;
    if (L.chunks) r.chunks = std::max<std::int64_t>(1, *L.chunks);
    else if (L.chunk_tokens) r.chunks = std::max<std::int64_t>(1, (s.job.sequence_length + *L.chunk_tokens - 1) / std::max<std::int64_t>(1, *L.chunk_tokens));
    else r.chunks = 8;
    if (compile == "block+loss" && s.trainer == "torchtune") {
      r.log_probability = 0;
      r.saves_logits = r.gradient_in_place = true;
    } else if (s.trainer == "litgpt") {
      // Fabric's bf16-true converts the module's outputs to fp32 (lightning/fabric/plugins/precision/half.py)
      r.to_float = Float::kModel;
      r.through_backward = 4;
      r.gradient_in_place = true;
    } else if (L.over && *L.over == "hidden") {
      r.over_hidden = true;
    }
    return r;
  }
  if (L.kind == "fused_linear") {
    r.kind = Kind::kFusedLinear;
    return r;
  }
  if (L.kind == "fused") {
    if (s.engine == Engine::kMegatron) {
      r.kind = Kind::kMegatronFused;
    } else {
      r.kind = Kind::kFused;
      if (s.trainer == "transformers") {
        r.to_float = Float::kModel;
        r.shift_copy = true;
      }
    }
    return r;
  }
  if (compiled_loss) {
    r.kind = Kind::kCompiled;
    return r;
  }
  if (s.engine == Engine::kMegatron) {
    r.kind = Kind::kMegatron;
  } else if (s.trainer == "torchtitan") {
    // output(h).float() in the model until 2024-10-21; train.py keeps `pred` through backward and into the next step until d95310702
    if (s.age <= 20240607) {
      r.to_float = Float::kModel;
      r.holds_float = true;
      r.through_backward = 4;
      r.persists = true;
    } else if (s.age < 20241022) {
      r.to_float = Float::kModel;
      r.holds_float = true;
    } else {
      r.to_float = Float::kLoss;
      r.holds_logits = true;
    }
  } else if (s.trainer == "transformers" || s.trainer == "axolotl" || s.trainer == "accelerate") {
    const bool masked = type == "bert" || type == "roberta";
    // CrossEntropyLoss on the logits as they are, shifted (read in 4.40.2, 4.45.2, 4.46.3, 4.48.1); loss/loss_utils.py from
    // 4.48.3 on, gpt_neox after that
    static constexpr std::string_view kOwnLoss[] = {"gpt2", "gpt_bigcode", "gpt_neox", "stablelm", "opt", "bloom", "mpt", "falcon", "dbrx"};
    const std::string_view version = s.job.framework.trainer_version;
    const bool patched = version.starts_with("4.48.") && version.size() > 5 && version[5] >= '3';
    const bool own = (type == "gpt_neox" ? s.age < 449 : s.age < 449 && !patched) && std::find(std::begin(kOwnLoss), std::end(kOwnLoss), type) != std::end(kOwnLoss);
    if (masked || own) {
      r.holds_logits = true;
      r.shift_copy = !masked;
      if (type == "gpt2" || type == "gpt_bigcode") r.through_backward = s.compute_bytes;   // the Trainer's `outputs` outlive backward
    } else if (s.age < 447) {            // modeling_llama.py and the others: logits.float() in the model, shifted copies
      r.to_float = Float::kModel;
      r.holds_float = r.shift_copy = true;
    } else {
      // loss/loss_utils.py: upcast in the loss; shift_logits.contiguous() until 4.48, labels are padded and shifted since
      r.to_float = Float::kLoss;
      r.holds_logits = r.holds_float = true;
      r.shift_copy = s.age < 449;
    }
  } else if (s.trainer == "llama-recipes" || s.trainer == "fsdp_qlora") {
    r.to_float = Float::kModel;
    r.holds_float = r.shift_copy = true;
    const bool keeps = s.trainer == "fsdp_qlora" || L.keeps_outputs.value_or(false);
    r.through_backward = keeps ? 4 : 0;
    r.key_value_cache = s.trainer == "llama-recipes" && keeps;
  } else if (s.trainer == "litgpt") {
    r.to_float = Float::kModel;
    r.holds_float = true;
  } else if (s.trainer == "torchtune") {
    r.to_float = Float::kLoss;
    r.holds_logits = r.holds_float = true;
  }
  return r;
}

}  // namespace shardfit::memory
