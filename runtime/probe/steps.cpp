#include "runtime/probe/steps.hpp"

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/models/math.hpp"
#include "runtime/probe/stopwatch.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/step.hpp"

namespace shardfit::probe {
namespace {

using Json = nlohmann::ordered_json;

struct Reference {
  int hidden, intermediate, layers, heads, kv_heads, vocabulary, sequence, micro_batch;
};
// Widths and vocabularies either side of what people train on CPUs.
constexpr Reference kQuick[] = {{512, 1408, 3, 8, 4, 8192, 256, 2}, {768, 2048, 2, 12, 4, 32768, 512, 1}};
constexpr Reference kMore[] = {{256, 704, 6, 4, 4, 16384, 128, 4}, {1024, 2816, 2, 16, 8, 32768, 512, 2}};

Json config_of(const Reference& r) {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", r.hidden},
          {"intermediate_size", r.intermediate},
          {"num_hidden_layers", r.layers},
          {"num_attention_heads", r.heads},
          {"num_key_value_heads", r.kv_heads},
          {"vocab_size", r.vocabulary},
          {"max_position_embeddings", r.sequence},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"hidden_act", "silu"}};
}

Json measure(comm::Collective& collective, const Reference& r, int threads, kernels::Type type, int steps) {
  const Json config = config_of(r);
  const model::Model model = model::parse_model(config.dump(), "", "");
  const int ranks = collective.ranks(), stage = ranks > 1 ? 3 : 0;
  const nlohmann::json job_json = {{"model", "probe"},
                                   {"sequence_length", r.sequence},
                                   {"precision", type == kernels::Type::kFp32 ? "fp32" : "bf16-mixed"},
                                   {"framework", {{"name", "shardfit"}}}};
  const nlohmann::json plan_json = {{"gpu", "cpu"},
                                    {"gpus_per_node", ranks},
                                    {"nodes", 1},
                                    {"cpus_per_gpu", threads},
                                    {"micro_batch", r.micro_batch},
                                    {"gradient_accumulation", 1},
                                    {"sharding", {{"stage", stage}, {"shard_degree", ranks}, {"replicate_degree", 1}}}};
  const job::Job job = job::parse_job(job_json, "");
  const job::Plan plan = job::parse_plan(plan_json);
  engine::Engine engine(schedule::build_step(model, job, plan), models::math_of(model, std::nullopt), collective, 1);
  engine.draw(0.02);

  const auto tokens = static_cast<std::size_t>(r.sequence);
  std::vector<std::int32_t> ids(tokens), positions(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    ids[i] = static_cast<std::int32_t>((i * 7919 + static_cast<std::size_t>(collective.rank()) * 104729) %
                                       static_cast<std::size_t>(r.vocabulary));
    positions[i] = static_cast<std::int32_t>(i);
  }
  const std::int32_t start = 0;
  engine::MicroBatch batch;
  for (int i = 0; i < r.micro_batch; ++i) batch.rows.push_back({i, r.sequence, ids, ids, positions, {&start, 1}});

  // By the rank's own clock, as the rates are measured.
  double compute = 0, communication = 0, update = 0, last = 0;
  engine.watch([&](const schedule::Event& event, double) {
    const double now = work_seconds(threads), own = now - last;
    last = now;
    switch (event.kind) {
      case schedule::EventKind::kGather:
      case schedule::EventKind::kReduce: communication += own; break;
      case schedule::EventKind::kClip:
      case schedule::EventKind::kOptimizer: update += own; break;
      case schedule::EventKind::kRelease: break;
      default: compute += own;
    }
  });
  std::vector<double> computes, communications, updates;
  engine::OptimizerSettings settings;
  settings.learning_rate = 1e-5;
  settings.max_grad_norm = 1;
  const double scale = 1.0 / static_cast<double>((r.sequence - 1) * r.micro_batch * ranks);
  for (int step = 0; step <= steps; ++step) {
    compute = communication = update = 0;
    last = work_seconds(threads);
    engine.micro_step(batch, step + 1, 0, 1, scale);
    last = work_seconds(threads);
    const auto gradients = engine.measure_gradients();
    update += work_seconds(threads) - last;
    last = work_seconds(threads);
    engine.update(settings, step + 1, gradients.norm);
    if (step == 0) continue;  // touches its memory for the first time
    computes.push_back(compute);
    communications.push_back(communication);
    updates.push_back(update);
  }
  const auto mean = [&](std::vector<double>& values) { return collective.sum(lower_quartile(values)) / ranks; };
  Json result;
  result["config"] = config;
  result["sequence"] = r.sequence;
  result["micro_batch"] = r.micro_batch;
  result["stage"] = stage;
  result["seconds"]["compute"] = mean(computes);
  result["seconds"]["communication"] = mean(communications);
  result["seconds"]["update"] = mean(updates);
  return result;
}

}  // namespace

Json measure_steps(comm::Collective& collective, int threads, kernels::Type type, bool quick) {
  Json list = Json::array();
  for (const Reference& r : kQuick) list.push_back(measure(collective, r, threads, type, quick ? 4 : 10));
  if (!quick)
    for (const Reference& r : kMore) list.push_back(measure(collective, r, threads, type, 10));
  return list;
}

}  // namespace shardfit::probe
