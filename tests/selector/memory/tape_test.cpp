// Blocks that are not replayed in full must leave behind exactly what a full replay leaves: the same bytes after their forward, and
// after their backward.
#include "selector/memory/tape.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/op_rules.hpp"
#include "selector/memory/pipeline.hpp"
#include "selector/memory/rank_replay.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

const std::string kBase = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";

std::vector<std::string> config_files() {
  std::vector<std::string> files;
  for (const char* folder : {"configs", "models"})
    for (const auto& entry : std::filesystem::directory_iterator(kBase + "/" + folder))
      if (entry.path().extension() == ".json") files.push_back(std::string(folder) + "/" + entry.path().filename().string());
  std::sort(files.begin(), files.end());
  return files;
}

struct Way {
  const char* what;
  json job, plan;
};

std::vector<Way> ways() {
  const json lora = {{"kind", "lora"}, {"rank", 8}, {"dropout", 0.1}, {"targets", "all-linear"}};
  const json dora = {{"kind", "lora"}, {"rank", 8}, {"targets", "all-linear"}, {"dora", true}};
  const json qlora = {{"kind", "qlora"}, {"rank", 8}, {"targets", {"q_proj", "v_proj"}}, {"quantization", "nf4"}};
  const auto framework = [](const char* name, const char* trainer) { return json{{"name", name}, {"trainer", trainer}}; };
  const json zero3 = {{"stage", 3}, {"shard_degree", 8}}, whole = {{"stage", 0}, {"shard_degree", 1}, {"replicate_degree", 8}};
  const json tp4 = {{"stage", 0}, {"shard_degree", 1}, {"replicate_degree", 2}};
  std::vector<Way> all;
  for (const char* trainer : {"transformers", "torchtitan", "torchtune", "litgpt", "composer", "xtuner"})
    all.push_back({trainer, {{"method", "full"}, {"framework", framework("fsdp2", trainer)}}, {{"sharding", zero3}}});
  for (const char* trainer : {"transformers", "torchtune", "litgpt"})
    for (const auto& method : {lora, dora, qlora})
      all.push_back({trainer, {{"method", method}, {"framework", framework("fsdp1", trainer)}}, {{"sharding", zero3}}});
  all.push_back({"ddp eager", {{"method", "full"}, {"attention", "eager"}, {"framework", framework("ddp", "transformers")}}, {{"sharding", whole}}});
  all.push_back({"titan op policy", {{"method", "full"}, {"framework", framework("fsdp2", "torchtitan")}}, {{"sharding", zero3}, {"activation_checkpointing", "selective_op"}}});
  all.push_back({"titan compiled", {{"method", "full"}, {"compile", "block"}, {"framework", framework("fsdp2", "torchtitan")}}, {{"sharding", zero3}, {"activation_checkpointing", "selective_op"}}});
  all.push_back({"liger", {{"method", "full"}, {"fused_kernels", {"swiglu", "rms_norm", "rope"}}, {"framework", framework("deepspeed", "transformers")}}, {{"sharding", zero3}}});
  for (const bool sequence : {false, true}) {
    json plan = {{"sharding", tp4}, {"tensor_parallel", 4}, {"sequence_parallel", sequence}};
    all.push_back({sequence ? "megatron tp sp" : "megatron tp", {{"method", "full"}, {"framework", {{"name", "megatron"}}}}, plan});
    all.push_back({sequence ? "titan tp sp" : "titan tp", {{"method", "full"}, {"framework", framework("fsdp2", "torchtitan")}}, plan});
    plan["activation_checkpointing"] = {{"kind", "selective"}, {"modules", {"core_attn", "layernorm", "mlp", "moe_act"}}};
    all.push_back({"megatron selective", {{"method", "full"}, {"attention", "eager"}, {"framework", {{"name", "megatron"}}}}, plan});
  }
  all.push_back({"megatron ep",
                 {{"method", "full"}, {"framework", {{"name", "megatron"}}}},
                 {{"sharding", tp4}, {"tensor_parallel", 4}, {"sequence_parallel", true}, {"expert_parallel", 2}, {"megatron", {{"expert-tensor-parallel-size", 1}}}}});
  return all;
}

// What is alive after the forward and, once the weight gradients are taken away, after the backward. Tensors this short lie in small
// segments, which the allocator always splits to the size asked for: the sums are exact.
struct Left {
  std::int64_t forward = 0, backward = 0;
};

Left run(const Tape& tape, bool whole, bool policy) {
  Timeline timeline({});
  TapeRunner runner(timeline);
  Timeline::Handle x = timeline.make(tape.bytes(tape.input), Term::kActivations);
  Saved saved;
  std::vector<Timeline::Handle> kept;
  TapeRunner::Forward how;
  how.save = !policy;
  if (policy) {
    kept.assign(tape.tensors.size(), Timeline::kNone);
    how.kept = &kept;
    how.collect_policy = true;
  }
  Timeline::Handle y = whole ? runner.forward(tape, x, how, policy ? nullptr : &saved) : runner.forward_kept_only(tape, x, how, policy ? nullptr : &saved);
  timeline.drop(x);
  Left left;
  left.forward = timeline.allocated();
  if (policy) return left;
  std::vector<Timeline::Handle> weights;
  timeline.drop(y);
  Timeline::Handle gy = timeline.make(tape.bytes(tape.output), Term::kActivationGradients);
  const auto gx = whole ? runner.backward(tape, saved, gy, weights) : runner.backward_kept_only(tape, saved, gy, weights);
  for (auto h : weights) timeline.drop(h);
  left.backward = timeline.allocated();
  timeline.drop(gx);
  EXPECT_EQ(timeline.allocated(), 0) << "something is never let go of";
  return left;
}

TEST(Tape, ShortReplayLeavesWhatTheFullOneLeaves) {
  std::size_t compared = 0;
  for (const auto& file : config_files()) {
    model::Model model;
    try {
      model = model::load_model(kBase + "/" + file);
    } catch (const Error&) {
      continue;                         // files that only the reader of configs is tested with
    }
    for (const auto& way : ways()) {
      json j = way.job, p = way.plan;
      j["model"] = file;
      j["sequence_length"] = 8;
      j["precision"] = "bf16-mixed";
      p["gpu"] = "h100_sxm_80gb";
      p["gpus_per_node"] = 8;
      p["micro_batch"] = 1;
      const job::Job job = job::parse_job(j, kBase);
      const job::Plan plan = job::parse_plan(p);
      std::optional<memory::Setup> setup;
      try {
        setup.emplace(make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")}));
      } catch (const Error&) {
        continue;                       // a model that cannot be split so
      }
      BlockShape shape{.tokens = 8, .encoder_tokens = 8, .sequences = 1, .sequence = 8};
      for (std::size_t b = 0; b < model.blocks.size(); ++b) {
        SCOPED_TRACE(file + ", " + way.what + ", block " + std::to_string(b));
        const UnitSizes unit = unit_sizes(*setup, model.blocks[b]);
        const Tape tape = block_tape(*setup, model.blocks[b], unit, shape);
        const bool small = std::all_of(tape.tensors.begin(), tape.tensors.end(), [](const auto& t) { return t.bytes < (1 << 20); });
        if (!small) continue;           // models of trillions of parameters
        const bool policy = setup->checkpoint == memory::Setup::Checkpoint::kSelectiveOp;
        const Left full = run(tape, true, policy), brief = run(tape, false, policy);
        EXPECT_EQ(full.forward, brief.forward);
        EXPECT_EQ(full.backward, brief.backward);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 1000u);
}

// Of many equal blocks only those at the ends are replayed in full; the peak is that of a replay of all of them. Between the two lies
// what the allocator does not cut off a segment's end.
TEST(Tape, ReplayingTheEndsFindsThePeakOfAllBlocks) {
  for (const char* file : {"configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json", "configs/openai-community__gpt2-medium.json", "configs/deepseek-ai__DeepSeek-V2-Lite.json", "configs/Qwen__Qwen3-0.6B.json"}) {
    const model::Model model = model::load_model(kBase + "/" + file);
    for (const auto& way : ways()) {
      json j = way.job, p = way.plan;
      j["model"] = file;
      j["sequence_length"] = 2048;
      j["precision"] = "bf16-mixed";
      p["gpu"] = "h100_sxm_80gb";
      p["gpus_per_node"] = 8;
      p["micro_batch"] = 2;
      for (const char* checkpointing : {"none", "full"}) {
        if (!way.plan.contains("activation_checkpointing")) p["activation_checkpointing"] = checkpointing;
        SCOPED_TRACE(std::string(file) + ", " + way.what + ", checkpointing " + p["activation_checkpointing"].dump());
        const job::Job job = job::parse_job(j, kBase);
        const job::Plan plan = job::parse_plan(p);
        std::optional<memory::Setup> setup;
        try {
          setup.emplace(make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")}));
        } catch (const Error&) {
          continue;
        }
        const ModelSizes sizes = model_sizes(*setup);
        const auto layout = pipeline_stages(*setup, static_cast<std::int64_t>(sizes.order.size())).front();
        const StageResult ends = replay_rank(*setup, sizes, layout, {});
        const StageResult all = replay_rank(*setup, sizes, layout, {.every_block = true});
        EXPECT_NEAR(static_cast<double>(ends.allocated_peak), static_cast<double>(all.allocated_peak), 0.01 * static_cast<double>(all.allocated_peak));
        EXPECT_EQ(ends.phase, all.phase);
      }
    }
  }
}

}  // namespace
}  // namespace shardfit::memory
