// What each trainer's code does with memory, as rows of data: how it writes a norm, RoPE, the MLP, the adapters and the loss.
// A row holds from a version on; the latest row that is not newer than the job's version counts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shardfit::job {
struct Job;
struct Plan;
}

namespace shardfit::memory {

enum class NormStyle : std::uint8_t {
  kUpcast,     // written out in Python: an fp32 copy of the input is kept for pow and mul, the result is cast back
  kUpcastT5,   // the same, but mul takes the input itself
  kUpcastWeight,  // the same, and the weight is multiplied in fp32 before the cast: the normalised fp32 copy is kept as well
  kUpcastKernel,  // one kernel on an fp32 copy of the input
  kComposite,  // aten's composite rms_norm (torch < 2.9): the same upcast inside one function
  kTwoStep,    // x * rstd, then * weight, in the activation's dtype
  kFused       // one kernel: keeps its input and a statistic a row
};
enum class LoraStyle : std::uint8_t { kPeft, kLitgpt, kTorchtune };

struct Dialect {
  NormStyle norm = NormStyle::kUpcast;
  NormStyle layer_norm = NormStyle::kFused;
  int rope_copies = 2;                // tensors in the activation format that rotating allocates besides its result
  int rope_temporary = 0;             // bytes an element of others
  bool rope_in_place = false;         // the kernel writes over what it rotates (Liger)
  bool fused_mlp = false;             // SwiGLU in one kernel: keeps gate and up only
  bool mlp_in_place = false;          // ... and writes their gradients over them (Liger)
  bool caches_kv = false;             // use_cache: the model returns k and v of every block
  bool repeats_kv = false;            // k and v expanded to all heads before attention
  bool contiguous_heads = false;      // q, k and v copied into [heads, positions] before attention, and its result back
  bool packs_qkv = false;             // one projection; q, k, v are views of its output
  bool packed_views = false;          // ... and stay views (no copies made for attention)
  LoraStyle lora = LoraStyle::kPeft;
  bool dropout = true;                // the code has dropout layers
  bool quantized_saves_input = false; // bitsandbytes under a weight that the code makes require a gradient
  bool python_gelu = false;           // gelu_new written out: several products kept
  bool softmax_fp32 = true, adds_mask = true, copies_attention = true;  // eager attention
  bool scores_fp32 = false;           // ... on fp32 copies of q and k
  bool softcap = false;               // ... with scores through tanh
  bool picks_kernel = false;          // SDPA's choice of kernel by mask, format and head size; false: flash
  bool flash_package = false;         // flash_attn's own functions
  bool masked_sdpa = false;           // SDPA gets a mask in every layer, not only in those with a window
  bool mask_per_layer = false;        // ... of booleans, which each call turns into its own format
  bool bias_in_mask = false;          // a relative bias goes to SDPA as a mask
  bool expands_kv = false;            // k and v are given every head whatever attends
  bool rope_concatenates = false;     // rotated parts are put together again in [heads, positions]
  bool policy_keeps_last = true;      // eager selective checkpointing also keeps the last matmul, which nothing needs
  bool weight_gradient_fused = false; // accumulated straight into the main buffer (Megatron)
};

// What stays alive around the loss. E = logits of the micro batch.
struct LossRules {
  enum class Kind : std::uint8_t { kPlain, kFused, kChunked, kFusedLinear, kCompiled, kMegatron, kMegatronFused } kind = Kind::kPlain;
  enum class Float : std::uint8_t { kNone, kModel, kLoss } to_float = Float::kNone;  // who casts the logits to fp32
  bool holds_logits = false, holds_float = false;   // Python locals that live through the loss
  bool shift_copy = false;                          // logits[..., :-1, :].contiguous()
  int through_backward = 0;                         // bytes a logit that a kept variable holds through backward
  bool persists = false;                            // ... and until the next step's forward is done
  bool key_value_cache = false;                     // kept outputs hold a cache as well
  std::int64_t chunks = 1;
  int log_probability = 4;                          // chunked: bytes a logit kept for each chunk
  bool saves_logits = false, gradient_in_place = false;
  bool over_hidden = false;                         // chunks of the hidden states: logits exist for one chunk only
};

// Where a version stands in the history of its project, larger is newer: for transformers the release (4.48.1 = 448), for trainers
// that are known by commit the day (20250604, from data/commits.txt or a date in the text); kNewest when not stated or unknown.
inline constexpr int kNewest = 99999999;
int trainer_age(std::string_view trainer, std::string_view version);
// The day a torch version was made: "2.4.1" by its release, "2.9.0.dev20250815" and "git 1963fc8 (2024-12-23)" by the text.
int torch_release_date(std::string_view version);
int release_number(std::string_view version);  // "4.48.1" -> 448; 0 when it holds no number

// The dialect of a trainer ("" = the framework's own examples) at a version.
Dialect dialect_of(std::string_view framework, std::string_view trainer, std::string_view version);

}  // namespace shardfit::memory
