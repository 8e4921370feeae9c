#include "selector/time/range.hpp"

#include <cmath>

namespace shardfit::timing {

double range_sigma(const Work& work, const job::Plan& plan, const DeviceRates& rates, const Links& links,
                   bool engine_measured, double attention_share) {
  const bool offloaded_optimizer = plan.offload.optimizer != job::Place::kNone && !work.frozen;
  double variance = 0.085 * 0.085;
  const auto add = [&](bool applies, double sigma) {
    if (applies) variance += sigma * sigma;
  };
  add(work.mixture, 0.20);
  add(work.frozen, 0.06);
  add(!plan.checkpointing.stated, 0.06);
  add(links.node_assumed, 0.15);
  add(rates.generation == Generation::kBlackwell || rates.generation == Generation::kCdna, 0.07);
  add(rates.generation == Generation::kVolta || rates.generation == Generation::kGa10x ||
          rates.generation == Generation::kAda,
      0.07);
  add(work.attention == AttentionWord::kEager, 0.08);
  add(offloaded_optimizer, 0.17);
  add(!work.label.empty(), offloaded_optimizer ? 0.37 : 0.12);
  add(work.engine == Engine::kDeepspeed || work.trainer == "transformers", 0.05);
  add(rates.guessed, 0.20);
  add(!engine_measured,
      0.10);  // an engine never seen on this generation: 4-6 % median where the engine is known, 15-25 % where not
  add(attention_share > 0, 0.35 * attention_share);  // a guessed kernel can be off by a factor of 1.5 to 3
  // A full fine-tune whose parameters live on the host streams them unpinned in the one case seen (2 GB/s a GPU).
  add(plan.offload.parameters != job::Place::kNone && !work.frozen && work.engine == Engine::kDeepspeed, 0.30);
  return std::sqrt(variance);
}

}  // namespace shardfit::timing
