// Every value of the job's switches of method, optimizer, precision, loss, kernels and attention: it moves the peak the way its source
// says, or is named here as without effect.
#include <gtest/gtest.h>

#include "tests/selector/memory/peaks.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

enum class Way { kMore, kLess, kSame };

struct Switch {
  const char* name;
  json base, change;                   // members of the job; the change on top of the base
  Way way;
  json plan = json::object();          // merged into the plan of both
};

double peak(const json& job_patch, const json& plan_patch) {
  json j = {{"model", "llama_small.json"}, {"method", "full"}, {"sequence_length", 2048}, {"precision", "bf16"}, {"attention", "sdpa"}, {"optimizer", {{"name", "adamw"}, {"implementation", "fused"}}},
            {"framework", {{"name", "ddp"}, {"trainer", "transformers"}, {"trainer_version", "4.51.3"}}}};
  json p = {{"gpu", "a100_sxm_80gb"}, {"gpus_per_node", 1}, {"micro_batch", 2}, {"activation_checkpointing", "none"}};
  j.update(job_patch);
  p.merge_patch(plan_patch);
  const auto job = job::parse_job(j, kGoldens);
  const auto plan = job::parse_plan(p);
  const auto model = model::load_model(job.model_path());
  return static_cast<double>(estimate_memory({job, plan, model, hardware::find_device(plan.gpu, "")}).memory.allocated_peak);
}

json lora(json more = json::object()) {
  json m = {{"kind", "lora"}, {"rank", 8}, {"targets", {"q_proj", "v_proj"}}, {"adapter_dtype", "fp32"}};
  m.merge_patch(more);
  return {{"method", m}};
}
json qlora(json more = json::object()) {
  json m = {{"kind", "qlora"}, {"rank", 8}, {"targets", {"q_proj", "v_proj"}}, {"adapter_dtype", "fp32"}, {"quantization", "nf4"}};
  m.merge_patch(more);
  return {{"method", m}, {"precision", {{"parameters", "nf4"}, {"compute", "bf16"}, {"master", "none"}}}};
}
json optimizer(json o) { return {{"optimizer", std::move(o)}}; }

const json kSmallBatch = {{"micro_batch", 1}, {"activation_checkpointing", "full"}};   // where states decide

std::vector<Switch> switches() {
  return {
      {"lora", {}, lora(), Way::kLess},
      {"lora: rank", lora(), lora({{"rank", 256}}), Way::kMore},
      {"lora: more targets", lora(), lora({{"targets", "all-linear"}}), Way::kMore},
      {"lora: dropout", lora(), lora({{"dropout", 0.1}}), Way::kMore},
      {"lora: dora", lora(), lora({{"dora", true}}), Way::kMore},
      {"lora: 16-bit adapters", lora(), lora({{"adapter_dtype", "bf16"}}), Way::kLess},
      {"lora: modules_to_save", lora(), lora({{"modules_to_save", {"lm_head", "embed_tokens"}}}), Way::kMore},
      {"lora: alpha", lora(), lora({{"alpha", 64}}), Way::kSame},   // a factor
      {"qlora", lora(), qlora(), Way::kLess, kSmallBatch},
      {"qlora: double quantisation", qlora(), qlora({{"double_quantization", true}}), Way::kLess},
      {"qlora: 8 bit", qlora(), qlora({{"quantization", "int8"}}), Way::kMore},   // twice the weights, and LLM.int8 keeps its inputs
      {"qlora: groups of 128 have fewer scales than blocks of 64", qlora(), qlora({{"quantization", "int4"}}), Way::kLess},
      {"qlora: quant_storage", qlora(), qlora({{"quant_storage", "bf16"}}), Way::kSame},   // the same bits under another type
      {"ia3", lora(), {{"method", {{"kind", "ia3"}, {"targets", {"k_proj", "v_proj"}}, {"feedforward", json::array()}}}}, Way::kLess},
      {"ia3: feedforward", {{"method", {{"kind", "ia3"}, {"targets", {"k_proj", "v_proj", "up_proj"}}, {"feedforward", json::array()}}}},
       {{"method", {{"kind", "ia3"}, {"targets", {"k_proj", "v_proj", "down_proj"}}, {"feedforward", {"down_proj"}}}}}, Way::kMore},   // an fp32 copy of what it reads
      {"partial", {}, {{"method", {{"kind", "partial"}, {"trainable", {"lm_head"}}}}}, Way::kLess},
      {"partial: one layer of six", {{"method", {{"kind", "partial"}, {"trainable", {"model.layers.*"}}}}}, {{"method", {{"kind", "partial"}, {"trainable", {"model.layers.5"}}}}}, Way::kLess},

      {"fp32", {}, {{"precision", "fp32"}}, Way::kMore},
      {"mixed", {}, {{"precision", "bf16-mixed"}}, Way::kMore},
      {"mixed: 16-bit masterless", {{"precision", "bf16-mixed"}}, {{"precision", "bf16"}}, Way::kLess},
      {"half is as large as bfloat", {{"precision", "bf16-mixed"}}, {{"precision", "fp16-mixed"}}, Way::kSame},

      {"states in 16 bit", optimizer({{"states", "fp32"}}), optimizer({{"states", "bf16"}}), Way::kLess, kSmallBatch},
      {"states in 8 bit", optimizer({{"states", "bf16"}}), optimizer({{"states", "int8"}}), Way::kLess, kSmallBatch},
      {"states in 4 bit", optimizer({{"states", "int8"}}), optimizer({{"states", "int4"}}), Way::kLess, kSmallBatch},
      {"paged states", optimizer({{"states", "int8"}}), optimizer({{"states", "int8"}, {"paged", true}}), Way::kLess, kSmallBatch},
      {"foreach", {}, optimizer({{"implementation", "foreach"}}), Way::kMore, kSmallBatch},
      {"single", {}, optimizer({{"implementation", "single"}}), Way::kMore, kSmallBatch},
      {"on the CPU", {}, optimizer({{"implementation", "cpu"}}), Way::kLess, kSmallBatch},
      {"in backward", {}, optimizer({{"in_backward", true}}), Way::kLess, kSmallBatch},
      {"adam is adamw", {}, optimizer({{"name", "adam"}, {"implementation", "fused"}}), Way::kSame, kSmallBatch},
      {"lion", {}, optimizer({{"name", "lion"}}), Way::kLess, kSmallBatch},
      {"muon", {}, optimizer({{"name", "muon"}}), Way::kLess, kSmallBatch},
      {"adafactor", {}, optimizer({{"name", "adafactor"}}), Way::kLess, kSmallBatch},
      {"sgd", {}, optimizer({{"name", "sgd"}}), Way::kLess, kSmallBatch},
      {"galore", {}, optimizer({{"name", "galore_adamw"}}), Way::kLess, kSmallBatch},

      {"eager attention", {}, {{"attention", "eager"}}, Way::kMore},
      {"flash", {}, {{"attention", "flash"}}, Way::kLess},          // transformers' SDPA copies q, k, v and its result from 4.48 to 4.55
      {"flash: which", {{"attention", "flash2"}}, {{"attention", "flash3"}}, Way::kSame},
      {"fused loss", {}, {{"loss", "fused"}}, Way::kLess},
      {"chunked loss", {}, {{"loss", {{"kind", "chunked"}, {"chunks", 8}}}}, Way::kLess},
      {"chunked over hidden states", {{"loss", {{"kind", "chunked"}, {"chunks", 8}}}}, {{"loss", {{"kind", "chunked"}, {"chunks", 8}, {"over", "hidden"}}}}, Way::kLess},
      {"fused linear loss", {}, {{"loss", "fused_linear"}}, Way::kLess},
      {"fused gated MLP", {}, {{"fused_kernels", {"swiglu"}}}, Way::kLess},
      {"fused norms", {}, {{"fused_kernels", {"rms_norm"}}}, Way::kLess},
      {"compiled blocks", {}, {{"compile", "block"}}, Way::kLess},
  };
}

TEST(Switches, EachMovesThePeakAsItsSourceSays) {
  for (const auto& s : switches()) {
    json both = s.base.is_null() ? json::object() : s.base;
    const double before = peak(both, s.plan);
    both.update(s.change);
    const double after = peak(both, s.plan);
    const double ratio = after / before;
    switch (s.way) {
      case Way::kMore: EXPECT_GT(ratio, 1.0005) << s.name; break;
      case Way::kLess: EXPECT_LT(ratio, 0.9995) << s.name; break;
      case Way::kSame: EXPECT_NEAR(ratio, 1, 0.0005) << s.name; break;
    }
  }
}

}  // namespace
}  // namespace shardfit::memory
