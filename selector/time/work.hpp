// What a training step of one job computes, summed once per (model, job) so that thousands of plans can be priced from
// it.
//
// A block becomes a few matrix products, attention cores and element-wise widths; everything that the plan decides
// (micro batch, parallel degrees, check-pointing, offload) is applied later by block_time and step_time.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "selector/job/job.hpp"
#include "selector/model/model.hpp"

namespace shardfit::timing {

enum class Engine { kShardfit, kFsdp1, kFsdp2, kDeepspeed, kDdp, kMegatron, kOther };
enum class Compute { kFp32, kHalf, kFp8 };  // what linear layers run in
enum class AttentionWord { kFlash, kFlash1, kFlash2, kFlash3, kCudnn, kFlex, kSdpa, kEager };

// One matrix product y[positions, out] = x[positions, in] W^T of a block.
struct Linear {
  double in = 0, out = 0;
  model::Space space = model::Space::kTokens;
  bool row_parallel = false;   // its input is split under tensor parallelism (output projections), else its output is
  bool adapter = false;        // carries a LoRA or IA3 adapter
  double weight_gradient = 1;  // share of its instances whose weight is trained
};

struct AttentionCore {
  double heads = 0, kv_heads = 0, query_dim = 0, value_dim = 0;
  bool causal = true, cross = false;
  double window = 0;  // tokens; 0 = full
  double dropout = 0;
};

struct Experts {
  double experts = 0, top_k = 0, hidden = 0, intermediate = 0, shared = 0;
  bool gated = true, clamped = false;  // clamped: gpt-oss's SwiGLU with limits and biases
  bool adapter = false;
  double weight_gradient = 1;
};

struct BlockWork {
  double count = 0;  // blocks like this one
  bool encoder = false;
  std::vector<Linear> linears;
  std::vector<AttentionCore> attention;
  std::vector<Experts> experts;
  // Element-wise operators: elements a token, summed over the operators of that kind.
  double rms_width = 0, layer_norm_width = 0, residual_width = 0, gated_width = 0, activation_width = 0,
         python_gelu_width = 0, clamped_gated_width = 0, rope_width = 0,
         head_width = 0 /* q and kv as the attention reads them */, dropout_width = 0,
         scale_width = 0 /* times a parameter vector */,
         routed_width = 0 /* hidden x experts a token: permuted twice */, scan_width = 0;
  double scan_flops = 0;  // state space: FLOPs a token
  double parameters = 0, expert_parameters = 0;
};

struct Work {
  // Model
  std::vector<BlockWork> blocks;
  std::vector<Linear> head;  // without the output projection to the vocabulary
  double head_norm_width = 0;
  double logits_width = 0;        // entries of the vocabulary; 0 = no language-model head
  double hidden = 0, layers = 0;  // layers: every block, encoder included
  double parameters = 0, block_parameters = 0, expert_parameters = 0, trainable = 0, adapter_parameters = 0;
  double kv_width = 0;  // kv heads x head dimension of the first attention block
  bool mixture = false, low_precision_norm = false, every_token_every_expert = false;

  // Job
  Engine engine = Engine::kShardfit;
  std::string label, trainer;
  int version = -1;  // major x 1000 + minor; -1 = not stated
  Compute compute = Compute::kHalf;
  bool autocast = false;
  double reduce_bytes = 2, gradient_bytes = 2, gather_bytes = 2;
  bool frozen = false;        // adapters train, the base does not
  double backward_share = 1;  // share of the blocks that a backward pass visits (partial training stops early)
  bool quantized = false;
  double dequantize_bytes = 0;  // per parameter and pass
  bool adapter_dropout = false;
  bool fused = false, fused_norm = false, fused_gate = false, fused_rope = false;
  double optimizer_bytes = 0;   // on the GPU, per local parameter
  double optimizer_flops = 0;   // products of the update itself (Muon, GaLore), whole model
  double cpu_state_bytes = 28;  // read and written per parameter by an update on the host
  bool optimizer_swapped =
      false;  // offloaded states come to the GPU and the update runs there (implementation "fused")
  AttentionWord attention = AttentionWord::kFlash;
  double loss_bytes = 40;  // per logit, forward and backward
  double loss_rows = 0,
         loss_chunks = 0;  // rows of logits alive at once, or their number of chunks; 0 = the engine's own
  double sequence = 0, decoder_sequence = 0;
  double batch_tokens = 0;  // tokens of an optimizer step as the job states them; 0 = by the plan
  bool ships_kernels =
      false;               // fused kernels not stated and the framework brings its own (Megatron, AutoModel's FSDP2)
  bool old_flash = false;  // 2023 era FSDP1: FlashAttention 1 or its Triton port
  std::vector<std::string> assumed;
};

Work make_work(const job::Job& job, const model::Model& model);

}  // namespace shardfit::timing
