#include "selector/memory/hugging_face.hpp"

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
};

constexpr FamilyCode kFamilies[] = {
    {.family = "bert", .softmax_fp32 = false},
    {.family = "dinov2", .softmax_fp32 = false},
    {.family = "falcon", .softmax_fp32 = false},
    {.family = "gemma", .rms = NormStyle::kUpcastWeight},
    {.family = "gemma2", .rms = NormStyle::kUpcastWeight},
    {.family = "gemma3", .rms = NormStyle::kUpcastWeight},
    {.family = "gemma4", .rms = NormStyle::kUpcastWeight},
    {.family = "gpt2", .softmax_fp32 = false},
    {.family = "glm", .rope_concatenates = true},
    {.family = "gpt_neo", .scores_fp32 = true},
    {.family = "gpt_neox", .softmax_fp32_since = 449, .rope_concatenates = true},
    {.family = "gpt_oss", .rms = NormStyle::kUpcastWeight, .softmax_fp32 = false, .rope_concatenates = true},
    {.family = "gptj", .scores_fp32 = true},
    {.family = "llama4", .softmax_fp32 = false},
    {.family = "nemotron", .rope_concatenates = true},
    {.family = "nemotron_h", .rms = NormStyle::kUpcastWeight},
    {.family = "olmo", .layer = NormStyle::kUpcastKernel},
    {.family = "olmo2", .rms = NormStyle::kUpcastWeight},
    {.family = "phi", .rope_concatenates = true},
    {.family = "phi3", .rope_concatenates = true},
    {.family = "roberta", .softmax_fp32 = false},
    {.family = "stablelm", .rope_concatenates = true},
    {.family = "t5", .rms = NormStyle::kUpcastT5, .softmax_fp32_until = 520},
    {.family = "vit", .softmax_fp32_since = 500},
};

}  // namespace

void set_hugging_face(Setup& s) {
  auto& d = s.dialect;
  for (const auto& f : kFamilies) {
    if (f.family != s.model.family) continue;
    d.norm = f.rms;
    d.layer_norm = f.layer;
    // autocast takes every softmax in fp32, whatever the code says (torch/amp, its list of fp32 operators)
    d.scores_fp32 = f.scores_fp32;
    d.rope_concatenates = f.rope_concatenates;
    d.softmax_fp32 = s.autocast || (f.softmax_fp32 && s.age >= f.softmax_fp32_since && s.age < f.softmax_fp32_until);
  }
  d.picks_kernel = true;
  // masking_utils.py (4.53 on) makes masks of booleans; before, one mask in the activations' format serves all layers
  d.mask_per_layer = s.age >= 453;
  d.expands_kv = s.model.family == "falcon";          // _split_heads: broadcast_to, or an index that copies
  d.masked_sdpa = s.model.family == "falcon" && s.age >= 453;                    // it never leaves the mask out
  d.bias_in_mask = s.age >= 520;                                                 // T5 on integrations/sdpa_attention.py
  d.softcap = s.model.facts.count("attention_softcap") > 0 && s.model.facts.at("attention_softcap") > 0;
}

}  // namespace shardfit::memory
