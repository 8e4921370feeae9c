#include "selector/memory/hugging_face.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {
namespace {

// Read in transformers 4.40.2, 4.48.3 and 5.24.0 (modeling_FAMILY.py), and measured there: tests/truth/families.
struct FamilyCode {
  std::string_view family;
  NormStyle rms = NormStyle::kUpcast, layer = NormStyle::kFused;
  bool softmax_fp32 = true;      // eager attention: softmax(..., dtype=torch.float32)
  int softmax_fp32_since = 0, softmax_fp32_until = 99999999;    // releases that do
  bool scores_fp32 = false;      // query.to(torch.float32) before the product
  bool rope_concatenates = false;
  int shared_sdpa_since = 448;   // calls integrations/sdpa_attention.py, which copied q, k and v until 4.55; its own code before did not
  int concatenates_since = 0;
  int weight_fp32_since = 0;     // kUpcastWeight from this release on, the product with the weight in 16 bits before
};
constexpr int kAfterCopies = 456;

constexpr FamilyCode kFamilies[] = {
    {.family = "bert", .softmax_fp32 = false, .shared_sdpa_since = kAfterCopies},
    {.family = "dinov2", .softmax_fp32 = false, .shared_sdpa_since = 450},
    {.family = "falcon", .softmax_fp32 = false, .shared_sdpa_since = kAfterCopies},
    {.family = "gemma", .rms = NormStyle::kUpcastWeight},
    {.family = "gemma2", .rms = NormStyle::kUpcastWeight},
    {.family = "gemma3", .rms = NormStyle::kUpcastWeight},
    {.family = "gemma4", .rms = NormStyle::kUpcastWeight},
    {.family = "gpt2", .softmax_fp32 = false},
    {.family = "gpt_bigcode", .shared_sdpa_since = 454},
    {.family = "glm", .rope_concatenates = true},
    {.family = "gpt_neo", .scores_fp32 = true},
    {.family = "gpt_neox", .softmax_fp32_since = 449, .rope_concatenates = true},
    {.family = "gpt_oss", .rms = NormStyle::kUpcastWeight, .softmax_fp32 = false, .rope_concatenates = true},
    {.family = "gptj", .scores_fp32 = true},
    {.family = "llama4", .softmax_fp32 = false},
    {.family = "nemotron", .rope_concatenates = true, .shared_sdpa_since = kAfterCopies},
    {.family = "nemotron_h", .rms = NormStyle::kUpcastWeight},
    {.family = "olmo", .layer = NormStyle::kUpcastKernel},
    {.family = "olmo2", .rms = NormStyle::kUpcastWeight, .weight_fp32_since = 452},
    {.family = "phi", .rope_concatenates = true},
    {.family = "phi3", .rope_concatenates = true, .concatenates_since = 449},
    {.family = "phimoe", .shared_sdpa_since = kAfterCopies},
    {.family = "qwen2_moe", .shared_sdpa_since = kAfterCopies},
    {.family = "roberta", .softmax_fp32 = false, .shared_sdpa_since = kAfterCopies},
    {.family = "stablelm", .rope_concatenates = true, .shared_sdpa_since = kAfterCopies},
    {.family = "t5", .rms = NormStyle::kUpcastT5, .softmax_fp32_until = 520},
    {.family = "vit", .softmax_fp32_since = 500, .shared_sdpa_since = 450},
};

}  // namespace

void set_hugging_face(Setup& s) {
  auto& d = s.dialect;
  for (const auto& f : kFamilies) {
    if (f.family != s.model.family) continue;
    d.norm = s.age < f.weight_fp32_since ? NormStyle::kUpcast : f.rms;
    d.contiguous_heads = d.contiguous_heads && s.age >= f.shared_sdpa_since;
    d.layer_norm = f.layer;
    // autocast takes every softmax in fp32, whatever the code says (torch/amp, its list of fp32 operators)
    d.scores_fp32 = f.scores_fp32;
    d.rope_concatenates = f.rope_concatenates && s.age >= f.concatenates_since;
    d.softmax_fp32 = s.autocast || (f.softmax_fp32 && s.age >= f.softmax_fp32_since && s.age < f.softmax_fp32_until);
  }
  // the FlashAttention2 classes of these repeated k and v before the kernel that takes them grouped (4.40.2, 4.45.2)
  static constexpr std::string_view kRepeat[] = {"mistral", "mixtral", "qwen2", "qwen2_moe", "phi3", "starcoder2"};
  if (d.flash_package && s.age < 448 && std::find(std::begin(kRepeat), std::end(kRepeat), s.model.family) != std::end(kRepeat)) d.repeats_kv = true;
  d.picks_kernel = true;
  // use_cache is on in configs and models return k and v of each block (a tuple, later DynamicCache) where nothing is checkpointed;
  // Trainer turns it off from 5.0 on (TrainingArguments.use_cache), and Gemma's HybridCache is for inference only
  const bool hybrid = s.model.family == "gemma2" || s.model.family == "gemma3";
  d.caches_kv = s.trainer == "transformers" && s.age < 500 && s.plan.checkpointing.kind == "none" && !hybrid && s.job.framework.use_cache.value_or(s.model.facts.count("use_cache") == 0 || s.model.facts.at("use_cache") > 0);
  // masking_utils.py (4.53 on) makes masks of booleans; before, one mask in the activations' format serves all layers
  d.mask_per_layer = s.age >= 453;
  d.expands_kv = s.model.family == "falcon";          // _split_heads: broadcast_to, or an index that copies
  // Falcon never leaves the mask out, Gemma 2 and 3 did not before masking_utils.py
  d.masked_sdpa = s.age >= 453 ? s.model.family == "falcon" : hybrid;
  d.bias_in_mask = s.age >= 520;                                                 // T5 on integrations/sdpa_attention.py
  d.softcap = s.model.facts.count("attention_softcap") > 0 && s.model.facts.at("attention_softcap") > 0;
}

}  // namespace shardfit::memory
