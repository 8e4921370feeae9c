#include "selector/time/block_time.hpp"

#include <algorithm>
#include <cmath>

namespace shardfit::timing {
namespace {

// Constants fitted on tests/truth/time_visible.jsonl unless another source is named.
constexpr double kSmallSide = 78.2;  // a product reaches min(k, n) / (min(k, n) + kSmallSide) of the sustained rate
constexpr double kKernelSeconds = 6.03e-6;
constexpr double kElementwise = 1.131, kMegatronElementwise = 1.278;  // on all element-wise bytes below
constexpr double kBackwardBytes = 2.485;                              // backward traffic over forward
constexpr double kEagerForward = 15.43,
                 kEagerBackward = 19.41;  // bytes per score of eager attention (softmax, mask, scale, casts)
constexpr double kEagerDropout = 5;       // and per pass with dropout on the scores
constexpr double kAdapter = 0.439;  // adapters' traffic against reading input and writing output of each product once
constexpr double kMoePermute = 28.5 / 4;  // bytes per routed hidden element: permute, pad and un-permute
constexpr double kRaggedTiles = 64,
                 kImbalance = 0.10;  // grouped products lose 64 rows an expert to tiles, 10 % to imbalance

// L4 norm: the floor shows only where the two are close.
double floor_norm(double a, double b) {
  const double a2 = a * a, b2 = b * b;
  return std::sqrt(std::sqrt(a2 * a2 + b2 * b2));
}

double tokens_of(const Work& work, const BlockWork& block, const Share& share) {
  return share.micro_batch * (block.encoder ? work.sequence : work.decoder_sequence) / share.context;
}

double linear_flops(const Work& work, const DeviceRates& rates) {
  switch (work.compute) {
    case Compute::kFp32: return rates.fp32_flops;
    case Compute::kFp8: return rates.fp8_flops;
    case Compute::kHalf: break;
  }
  return rates.half_flops;
}

struct AttentionTime {
  double forward = 0, backward = 0;
};

AttentionTime attention_seconds(const Work& work, const BlockWork& block, const Share& share, const DeviceRates& rates,
                                const AttentionKernel& kernel) {
  AttentionTime time;
  const double half = work.compute == Compute::kFp32 ? rates.fp32_flops : rates.half_flops;
  const double queries = block.encoder ? work.sequence : work.decoder_sequence;
  for (const AttentionCore& core : block.attention) {
    const double keys = core.cross ? work.sequence : queries;
    const double heads = core.heads / share.tensor, dims = core.query_dim + core.value_dim;
    const double sequences = share.micro_batch / share.context;
    if (work.attention == AttentionWord::kEager) {
      // Every score is computed, masked or not, and each step of the softmax goes through memory.
      const double scores = sequences * heads * queries * keys;
      const double products = 2 * scores * dims / half;
      const double dropout = core.dropout > 0 && work.engine == Engine::kDdp ? kEagerDropout : 0;
      time.forward += products + scores * (kEagerForward + dropout) / rates.memory_bytes_per_second;
      time.backward += 2 * products + scores * (kEagerBackward + dropout) / rates.memory_bytes_per_second;
      continue;
    }
    const double pairs =
        core.window > 0 && core.window < keys ? queries * core.window : queries * keys * (core.causal ? 0.5 : 1);
    const double seconds =
        sequences * 2 * pairs * heads * dims / (kernel.flops_per_second * (keys / (keys + kHalfRateSequence)));
    time.forward += 0.9 * seconds;
    time.backward += 2.1 * seconds;
  }
  return time;
}

}  // namespace

Share share_of(const job::Plan& plan, bool sharded) {
  Share share;
  share.micro_batch = static_cast<double>(plan.micro_batch);
  share.tensor = static_cast<double>(plan.tensor_parallel);
  share.context = static_cast<double>(plan.context_parallel);
  share.expert = static_cast<double>(plan.expert_parallel);
  share.sequence_parallel = plan.sequence_parallel ? share.tensor : 1;
  share.nodes = static_cast<double>(plan.nodes);
  share.sharded = sharded;
  const job::Checkpointing& c = plan.checkpointing;
  if (c.kind == "full") share.recompute = Share::Recompute::kFull;
  else if (c.kind == "selective_op")
    share.recompute =
        c.save && *c.save == "all_compute" ? Share::Recompute::kSelectiveOpAllCompute : Share::Recompute::kSelectiveOp;
  else if (c.kind == "selective") share.recompute = Share::Recompute::kAttention;
  share.recompute_every = static_cast<double>(std::max<std::int64_t>(c.every, 1));
  return share;
}

double gemm_seconds(double m, double k, double n, double flops_per_second, double bytes_per_second) {
  return std::max(2 * m * k * n / flops_per_second * (1 + kSmallSide / std::min(k, n)),
                  2 * (m * k + k * n + m * n) / bytes_per_second) +
         kKernelSeconds;
}

double attention_forward_seconds(const Work& work, const BlockWork& block, const Share& share, const DeviceRates& rates,
                                 const AttentionKernel& kernel) {
  return attention_seconds(work, block, share, rates, kernel).forward;
}

Passes block_seconds(const Work& work, const BlockWork& block, const Share& share, const DeviceRates& rates,
                     const EngineRow& engine, const AttentionKernel& kernel) {
  const double tokens = tokens_of(work, block, share), flops = linear_flops(work, rates),
               memory = rates.memory_bytes_per_second;
  const double encoder_tokens = share.micro_batch * work.sequence / share.context;
  const bool hugging_face_loop =
      work.engine == Engine::kDeepspeed || work.engine == Engine::kFsdp1 || work.engine == Engine::kDdp;

  // Matrix products: once forward; backward once for the input's gradient and once for the weight's where it trains.
  double linear = 0, weight_gradients = 0, adapter_bytes = 0, adapters = 0;
  for (const Linear& l : block.linears) {
    const double m = l.space == model::Space::kEncoderTokens ? encoder_tokens
                     : l.space == model::Space::kSequences   ? share.micro_batch
                                                             : tokens;
    const double k = l.row_parallel ? l.in / share.tensor : l.in,
                 n = l.row_parallel ? l.out : std::max(l.out / share.tensor, 1.0);
    const double seconds = gemm_seconds(m, k, n, flops, memory);
    linear += seconds;
    weight_gradients += seconds * l.weight_gradient;
    if (l.adapter) {
      adapter_bytes += m * (2 * l.in * (work.adapter_dropout ? 2 : 1) + (work.fused ? 8 : 12) * l.out);
      ++adapters;
    }
  }

  double launch_experts = 0;
  for (const Experts& e : block.experts) {
    const double local = std::max(e.experts / share.expert, 1.0),
                 rows = std::max(tokens * e.top_k * share.expert / e.experts, 1.0);
    const double products = e.gated ? 3 : 2, side = std::min(e.hidden, e.intermediate);
    double seconds = (1 + kRaggedTiles / rows + kImbalance) * local * products * 2 * rows * e.hidden * e.intermediate /
                     flops * (1 + kSmallSide / side);
    seconds = std::max(seconds, local * products * e.hidden * e.intermediate * 2 / memory) + 4 * kKernelSeconds;
    if (e.shared > 0) seconds += products * gemm_seconds(tokens, e.hidden, e.shared / share.tensor, flops, memory);
    if (work.every_token_every_expert && hugging_face_loop) {
      // Hugging Face's Llama 4 multiplies every token with every expert.
      seconds += (e.experts - e.top_k) * 2 * products * tokens * e.hidden * e.intermediate / flops;
    } else if (hugging_face_loop) {
      // Hugging Face's loop over experts: three launches each; under ZeRO-3 also four hooks, dearer across nodes.
      launch_experts +=
          e.experts *
          (8e-5 * 3 + (share.sharded && work.engine == Engine::kDeepspeed ? 4 * 0.349e-3 * (1 + share.nodes) : 0));
      seconds += e.experts * 3 * kKernelSeconds;
    }
    linear += seconds;
    weight_gradients += seconds * e.weight_gradient;
    if (e.adapter) {
      adapter_bytes += tokens * e.top_k * 3 * (2 * e.hidden + (work.fused ? 8 : 12) * e.intermediate);
      adapters += 3;
    }
  }

  const AttentionTime attention = attention_seconds(work, block, share, rates, kernel);

  // Element-wise traffic, bytes a token. RMSNorm of Hugging Face in eager mode 36 per element (upcast, square, mean,
  // scale, cast back), fused 4; LayerNorm 4, under autocast to fp32 16; a residual add 6 (fused into its neighbour 4);
  // gated MLP 10, fused 6; GELU 4, in Python 30; clamped SwiGLU of gpt-oss 24, under Megatron 107 (fitted, its
  // recompute included); rotary 24, fused 4; transposes 6.
  const bool cheap_norm = work.fused || work.low_precision_norm || !work.autocast;
  const bool own_gelu =
      work.engine == Engine::kDeepspeed || work.engine == Engine::kMegatron || work.engine == Engine::kOther;
  const bool fp8 = work.compute == Compute::kFp8;
  const double split_by_sequence =
      block.rms_width * (work.fused_norm ? 4 : 36) + block.layer_norm_width * (cheap_norm ? 4 : 16) +
      (block.residual_width + block.scale_width) * (work.fused ? 4 : 6) + block.dropout_width * 5 +
      block.routed_width * kMoePermute + (fp8 ? 12 * work.hidden : 0);
  const double inner = block.gated_width + block.activation_width + block.python_gelu_width + block.clamped_gated_width;
  const double split_by_tensor = block.gated_width * (work.fused_gate ? 6 : 10) + block.activation_width * 4 +
                                 block.python_gelu_width * (own_gelu ? 4 : 30) +
                                 block.clamped_gated_width * (work.engine == Engine::kMegatron ? 106.7 : 24) +
                                 (fp8 ? 6 * inner : 0) + block.rope_width * (work.fused_rope ? 4 : 24) +
                                 block.head_width * 6 * (work.fused ? 0.7 : 1) + block.scan_width * 24;
  const double elementwise = (work.engine == Engine::kMegatron ? kMegatronElementwise : kElementwise) * tokens *
                                 (split_by_sequence / share.sequence_parallel + split_by_tensor / share.tensor) /
                                 memory +
                             block.scan_flops * tokens / share.tensor / (0.3 * rates.half_flops);

  const double adapter =
      adapters > 0 ? kAdapter * (adapter_bytes / share.tensor / memory + 2 * kKernelSeconds * adapters) : 0;
  const double dequantize =
      work.dequantize_bytes > 0 ? block.parameters / share.tensor * work.dequantize_bytes / memory : 0;

  Passes passes;
  passes.forward = linear + attention.forward + elementwise + adapter + dequantize;
  passes.backward =
      linear + weight_gradients + attention.backward + kBackwardBytes * elementwise + 2 * adapter + dequantize;
  switch (share.recompute) {
    case Share::Recompute::kNone: break;
    case Share::Recompute::kFull: passes.recompute = passes.forward; break;
    case Share::Recompute::kSelectiveOp:
      passes.recompute = 0.5 * (0.3 * linear + attention.forward + elementwise);
      break;
    case Share::Recompute::kSelectiveOpAllCompute: passes.recompute = elementwise; break;
    case Share::Recompute::kAttention: passes.recompute = attention.forward; break;
  }
  passes.recompute /= share.recompute_every;

  double launch = work.fused ? engine.launch_fused : engine.launch_eager;
  if (work.frozen) launch *= 1.6;
  if (share.sharded) launch += engine.sharded_launch;
  launch += launch_experts;
  passes.forward = floor_norm(passes.forward, launch);
  passes.backward = floor_norm(passes.backward, 1.2 * launch);
  if (passes.recompute > 0) passes.recompute = floor_norm(passes.recompute, launch / share.recompute_every);
  passes.backward *= work.backward_share;
  passes.recompute *= work.backward_share;
  return passes;
}

Passes head_seconds(const Work& work, const Share& share, const DeviceRates& rates) {
  Passes passes;
  const double tokens = share.micro_batch * work.decoder_sequence / share.context,
               memory = rates.memory_bytes_per_second;
  // 16 bit even under fp8.
  const double flops = work.compute == Compute::kFp32 ? rates.fp32_flops : rates.half_flops;
  if (work.logits_width > 0) {
    const double logits = work.logits_width / share.tensor;
    const double product = 2 * tokens * work.hidden * logits / flops * (1 + kSmallSide / work.hidden);
    const double traffic = tokens * logits * work.loss_bytes / memory;
    passes.forward += product + 0.35 * traffic;
    passes.backward += product * (work.frozen ? 1 : 2) + 0.65 * traffic;
  }
  for (const Linear& l : work.head) {
    const double seconds =
        gemm_seconds(l.space == model::Space::kSequences ? share.micro_batch : tokens, l.in, l.out, flops, memory);
    passes.forward += seconds;
    passes.backward += seconds * (1 + l.weight_gradient);
  }
  return passes;
}

}  // namespace shardfit::timing
