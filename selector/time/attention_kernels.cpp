#include "selector/time/attention_kernels.hpp"

#include <algorithm>

namespace shardfit::timing {
namespace {

// Share of the dense half-precision peak, fitted on tests/truth/time_visible.jsonl within what is published for the
// kernels alone (H100, head 128, forward: FlashAttention-2 370, cuDNN 600, FlashAttention-3 648 TFLOPS, figure 5 of
// arXiv 2407.08608; sdpa 300, pytorch/benchmark #2296).
struct Row {
  Generation generation;
  double flash1, flash2, flash3, cudnn;  // a kernel that does not exist on a generation = the one that runs instead
};
constexpr Row kRows[] = {
    {Generation::kVolta, 0.237, 0.573, 0.573, 0.573},  // memory-efficient attention: FlashAttention-2 begins with
                                                       // Ampere
    {Generation::kAmpere, 0.290, 0.700, 0.700, 0.700},
    {Generation::kHopper, 0.159, 0.345, 0.583, 0.528},
    {Generation::kBlackwell, 0.159, 0.345, 0.513, 0.513},
    {Generation::kGa10x, 0.321, 0.635, 0.635, 0.635},
    {Generation::kAda, 0.338, 0.795, 0.795, 0.795},
    {Generation::kCdna, 0.159, 0.345, 0.345, 0.345},
};
constexpr double kFlexShare = 0.85;  // of FlashAttention-2: FlexAttention reports 85-90 % of it (PyTorch blog, 2024-08)
constexpr double kFp32Share = 0.7;   // fp32 runs the memory-efficient kernel; share of what fp32 products sustain
// What the generation's full-power card sustains of its peak in products; cards with a lower limit lose as much in
// attention.
constexpr double kAmpereFull = 0.788, kHopperFull = 0.673;

double share_of(const Work& work, Generation generation, const Row& row, AttentionKernel& kernel) {
  const auto pick = [&](double share, std::string_view name, bool stated) {
    kernel.name = name;
    kernel.stated = stated;
    return share;
  };
  switch (work.attention) {
    case AttentionWord::kFlash1: return pick(row.flash1, "flash1", true);
    case AttentionWord::kFlash2: return pick(row.flash2, "flash2", true);
    case AttentionWord::kFlash3: return pick(row.flash3, "flash3", true);
    case AttentionWord::kCudnn: return pick(row.cudnn, "cudnn", true);
    case AttentionWord::kFlex: return pick(row.flash2 * kFlexShare, "flex", true);
    case AttentionWord::kEager: return pick(row.flash2, "eager", true);
    case AttentionWord::kFlash:
    case AttentionWord::kSdpa: break;
  }
  if (generation == Generation::kBlackwell) return pick(row.cudnn, "cudnn", false);
  if (work.old_flash && work.attention == AttentionWord::kFlash &&
      (generation == Generation::kAmpere || generation == Generation::kHopper))
    return pick(row.flash1, "flash1", false);
  if (generation == Generation::kHopper) {
    // Transformer Engine's cuDNN kernel. PyTorch's own sdpa chooses FlashAttention-2.
    if (work.engine == Engine::kMegatron || work.trainer == "automodel" ||
        (work.engine == Engine::kFsdp2 && (work.ships_kernels || work.attention == AttentionWord::kFlash)))
      return pick(row.cudnn, "cudnn", false);
    // DeepSpeed of 2025 with attn_implementation flash_attention_3, as its long-sequence recipes use it.
    if (work.engine == Engine::kDeepspeed && work.attention == AttentionWord::kFlash && work.version >= 15)
      return pick(row.flash3, "flash3", false);
  }
  return pick(row.flash2, "flash2", false);
}

}  // namespace

AttentionKernel attention_kernel(const Work& work, const DeviceRates& rates) {
  const Row* row = kRows;
  for (const Row& candidate : kRows)
    if (candidate.generation == rates.generation) row = &candidate;
  AttentionKernel kernel;
  double share = share_of(work, rates.generation, *row, kernel);
  const double sustained = rates.half_flops / rates.peak_half_flops;
  if (rates.generation == Generation::kAmpere) share *= std::min(1.0, sustained / kAmpereFull);
  if (rates.generation == Generation::kHopper) share *= std::min(1.0, sustained / kHopperFull);
  kernel.flops_per_second =
      work.compute == Compute::kFp32 ? kFp32Share * rates.fp32_flops : share * rates.peak_half_flops;
  return kernel;
}

}  // namespace shardfit::timing
