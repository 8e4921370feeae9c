// Megatron: parameters on each pipeline rank as its own code builds them, chunks in flight, formats of its flags, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/op_rules.hpp"
#include "selector/memory/pipeline.hpp"
#include "selector/memory/rank_replay.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

const std::string kTruth = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";
const std::string kHere = std::string(SHARDFIT_SOURCE_DIR) + "/tests/selector/memory";

json plan_of(std::int64_t gpus, std::int64_t tp, std::int64_t pp, std::int64_t ep, std::int64_t virtual_stages, const json& megatron) {
  json p = {{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", gpus}, {"micro_batch", 1}, {"gradient_accumulation", 8}, {"tensor_parallel", tp}, {"sequence_parallel", tp > 1}, {"expert_parallel", ep},
            {"sharding", {{"stage", 1}, {"shard_degree", gpus / (tp * pp)}}}, {"megatron", megatron}};
  if (pp > 1) {
    p["pipeline_parallel"] = {{"degree", pp}, {"schedule", virtual_stages > 1 ? "interleaved_1f1b" : "1f1b"}};
    if (virtual_stages > 1) p["pipeline_parallel"]["virtual_stages"] = virtual_stages;
  }
  return p;
}

json job_of(std::int64_t sequence = 128) {
  return {{"model", "configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json"}, {"method", "full"}, {"sequence_length", sequence}, {"precision", "bf16-mixed"}, {"framework", {{"name", "megatron"}}}};
}

// goldens/megatron_parameters.jsonl is made by megatron_parameters.py beside it.
TEST(Megatron, ParametersOfEachRankAreThoseThatMegatronBuilds) {
  std::istringstream lines(read_file(kHere + "/goldens/megatron_parameters.jsonl"));
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const json c = json::parse(line);
    SCOPED_TRACE(line.substr(0, 60) + "... tp " + c["tp"].dump() + " pp " + c["pp"].dump() + " ep " + c["ep"].dump() + " etp " + c["etp"].dump() + " " + c["megatron"].dump());
    const model::Model model = model::parse_model(c["config"].dump(), "config.json");
    json flags = c["megatron"];
    flags["transformer-impl"] = "local";                // as the script builds them
    if (!c["etp"].is_null()) flags["expert-tensor-parallel-size"] = c["etp"];
    const job::Job job = job::parse_job(job_of(), kTruth);
    const job::Plan plan = job::parse_plan(plan_of(c["world"], c["tp"], c["pp"], c["ep"], c["vp"], flags));
    const auto setup = make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")});
    const ModelSizes sizes = model_sizes(setup);
    const auto stages = pipeline_stages(setup, static_cast<std::int64_t>(sizes.order.size()));
    ASSERT_EQ(stages.size(), c["stages"].size());
    for (std::size_t i = 0; i < stages.size(); ++i) {
      std::int64_t dense = 0, experts = 0;
      const auto add = [&](const UnitSizes& u) {
        dense += u.elements - u.expert_elements;
        experts += u.expert_elements;
      };
      for (auto b : stages[i].blocks) {
        add(sizes.blocks[static_cast<std::size_t>(sizes.kind(b))]);
        // a buffer of Megatron's router, a parameter of Hugging Face's
        for (const auto& p : sizes.block(setup, sizes.kind(b)).parameters)
          if (p.name.find("e_score_correction_bias") != std::string::npos) dense -= p.elements();
      }
      if (stages[i].first || (stages[i].last && (model.tied_embeddings || stages[i].predictions > 0))) add(sizes.embedding_of(stages[i]));
      if (stages[i].last) add(sizes.head);
      EXPECT_EQ(dense, c["stages"][i]["dense"].get<std::int64_t>()) << "stage " << i;
      EXPECT_EQ(experts, c["stages"][i]["experts"].get<std::int64_t>()) << "stage " << i;
    }
  }
  EXPECT_GE(cases, 14);
}

TEST(Megatron, ABlockEachForEmbeddingAndLossWhereOnlyThatDivides) {
  const model::Model model = model::load_model(kTruth + "/configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json");   // 22 blocks
  const job::Job job = job::parse_job(job_of(), kTruth);
  const job::Plan plan = job::parse_plan(plan_of(4, 1, 4, 1, 2, json::object()));
  const auto setup = make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")});
  const auto stages = pipeline_stages(setup, 22);
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[0].blocks.size(), 5u);
  EXPECT_EQ(stages[1].blocks.size(), 6u);
  EXPECT_EQ(stages[3].blocks.size(), 5u);
  EXPECT_EQ(stages[1].blocks.front(), 2) << "the embedding stands for the first stage's first block";
  EXPECT_TRUE(std::any_of(setup.assumed.begin(), setup.assumed.end(), [](const auto& a) { return a.find("account-for-loss") != std::string::npos; }));
}

TEST(Megatron, ChunksInFlightFollowItsSchedule) {
  // warm-up of 2 (ranks - rank - 1) + (chunks - 1) ranks forwards and one more before the first backward, never more than there are
  for (const std::int64_t ranks : {2, 4, 8})
    for (const std::int64_t chunks : {2, 3, 8})
      for (const std::int64_t batches : {ranks, 2 * ranks, 16 * ranks})
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const InFlight f = interleaved_in_flight(ranks, rank, batches, std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 1));
          const std::int64_t alive = std::accumulate(f.alive.begin(), f.alive.end(), std::int64_t{1});
          EXPECT_EQ(alive, std::min(2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1, batches * chunks)) << ranks << " ranks, rank " << rank << ", " << chunks << " chunks, " << batches;
          for (auto n : f.alive) EXPECT_LE(n, batches);
        }
  // two ranks, four chunks: when the last rank's loss is run backward it holds two micro batches of each earlier chunk
  const InFlight last = interleaved_in_flight(2, 1, 4, {2, 2, 2, 3});
  EXPECT_EQ(last.backward, 3);
  EXPECT_EQ(last.alive, (std::vector<std::int64_t>{2, 2, 2, 0}));
  // a heavy first chunk on the first rank: forwards 0 0 1 1 | 0, then each backward of chunk 1 is followed by a forward of chunk 0
  const InFlight first = interleaved_in_flight(2, 0, 16, {9, 1});
  EXPECT_EQ(first.alive[0] + (first.backward == 0), 4);
}

Setup with(const model::Model& model, const job::Job& job, const job::Plan& plan) { return make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")}); }

TEST(Megatron, FlagsSetTheFormatsOfGradientsMasterWeightsAndStates) {
  const model::Model model = model::load_model(kTruth + "/configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json");
  const job::Job job = job::parse_job(job_of(), kTruth);
  const auto bytes = [&](const json& flags) {
    const job::Plan plan = job::parse_plan(plan_of(2, 1, 1, 1, 1, flags));
    const auto s = with(model, job, plan);
    return std::array{s.gradient_bytes, s.master_bytes, s.state_bytes};
  };
  EXPECT_EQ(bytes(json::object()), (std::array{4.0, 4.0, 4.0}));
  EXPECT_EQ(bytes({{"grad-reduce-in-bf16", true}}), (std::array{2.0, 4.0, 4.0}));
  EXPECT_EQ(bytes({{"grad_reduce_in_bf16", true}}), (std::array{2.0, 4.0, 4.0}));
  EXPECT_EQ(bytes({{"use-precision-aware-optimizer", true}}), (std::array{4.0, 2.0, 4.0}));
  EXPECT_EQ(bytes({{"use-precision-aware-optimizer", true}, {"main-grads-dtype", "bf16"}, {"exp-avg-dtype", "bf16"}, {"exp-avg-sq-dtype", "bf16"}}), (std::array{2.0, 2.0, 2.0}));
  EXPECT_EQ(bytes({{"use-precision-aware-optimizer", true}, {"main-params-dtype", "fp16"}, {"exp-avg-dtype", "fp8"}}), (std::array{4.0, 2.0, 2.5}));
}

TEST(Megatron, Fp8KeepsHalfOfTheInputsAndCopiesOfTheWeights) {
  const model::Model model = model::load_model(kTruth + "/configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json");
  const job::Job job = job::parse_job(job_of(), kTruth);
  const auto bytes = [&](const char* gpu, json flags) {
    flags["fp8-format"] = "hybrid";
    json p = plan_of(2, 1, 1, 1, 1, flags);
    p["gpu"] = gpu;
    const job::Plan plan = job::parse_plan(p);
    const auto s = make_setup({job, plan, model, hardware::find_device(gpu, "")});
    return std::array{s.fp8_input_bytes, s.fp8_weight_bytes};
  };
  EXPECT_EQ(bytes("h100_sxm_80gb", json::object()), (std::array{1.0, 2.0}));
  EXPECT_EQ(bytes("h100_sxm_80gb", {{"fp8-param-gather", true}}), (std::array{1.0, 0.0}));
  EXPECT_EQ(bytes("gb200_186gb", {{"fp8-recipe", "tensorwise"}}), (std::array{1.0, 1.0}));
  EXPECT_EQ(bytes("gb200_186gb", {{"fp8-recipe", "mxfp8"}}), (std::array{1 + 1.0 / 32, 2 + 1.0 / 16}));
  // the peak of a long sequence falls by half of what its linear layers keep: normalised and rotated inputs, attention's and the MLP's
  const auto peak = [&](const json& flags) {
    json p = plan_of(2, 1, 1, 1, 1, flags);
    p["micro_batch"] = 16;
    return estimate_memory({job::parse_job(job_of(2048), kTruth), job::parse_plan(p), model, hardware::find_device("h100_sxm_80gb", "")}).memory.allocated_peak;
  };
  const double tokens = 16 * 2048, kept = tokens * 22 * (2048 + 2048 + 5632);       // two norms and the product; attention keeps its own result
  const double weights = 22 * (2048.0 * (2048 + 2 * 256 + 2048) + 3.0 * 2048 * 5632) * 2, attention = tokens * 22 * 2048;
  const double saved = static_cast<double>(peak(json::object()) - peak({{"fp8-format", "hybrid"}}));
  EXPECT_NEAR(saved, kept - attention - weights, 0.05 * kept);
}

TEST(Megatron, WhatItRefusesIsRefusedInOneMessage) {
  struct Case {
    const char* model;
    std::int64_t gpus, tp, pp, ep, vp, sequence;
    json flags;
    const char* where;
  };
  const char* llama = "configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json";   // 22 blocks, 32 heads, 4 key/value heads
  const char* mixtral = "configs/mistralai__Mixtral-8x7B-v0.1.json";
  const std::vector<Case> cases = {
      {llama, 3, 3, 1, 1, 1, 129, {}, "/plan/tensor_parallel"},
      {llama, 5, 1, 5, 1, 1, 128, {}, "/plan/pipeline_parallel/degree"},
      {llama, 2, 1, 2, 1, 5, 128, {}, "/plan/pipeline_parallel/degree"},
      {llama, 4, 1, 4, 1, 1, 128, {{"decoder-first-pipeline-num-layers", 5}}, "/plan/pipeline_parallel/degree"},
      {llama, 2, 1, 2, 1, 1, 128, {{"account-for-embedding-in-pipeline-split", true}}, "/plan/pipeline_parallel/degree"},
      {llama, 2, 1, 2, 1, 1, 128, {{"pipeline-model-parallel-layout", "Et*3|t*3L"}}, "/plan/megatron/pipeline-model-parallel-layout"},
      {llama, 2, 1, 2, 1, 100000, 128, {}, "/plan/pipeline_parallel/degree"},
      {llama, 1, 1, 1, 1, 1, 128, {{"make-vocab-size-divisible-by", 1e14}}, "/plan/megatron/make-vocab-size-divisible-by"},
      {llama, 2, 1, 1, 2, 1, 128, {}, "/plan/expert_parallel"},
      {mixtral, 6, 1, 1, 6, 1, 128, {}, "/plan/expert_parallel"},
      {mixtral, 8, 2, 1, 8, 1, 128, {}, "/plan/expert_parallel"},
      {llama, 2, 2, 1, 1, 1, 127, {}, "/plan/sequence_parallel"},
      {llama, 1, 1, 1, 1, 1, 128, {{"recompute-granularity", "selective"}, {"recompute-method", "block"}}, "/plan/megatron/recompute-method"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.model) + " tp " + std::to_string(c.tp) + " pp " + std::to_string(c.pp) + " ep " + std::to_string(c.ep) + c.flags.dump());
    const model::Model model = model::load_model(kTruth + "/" + c.model);
    const job::Job job = job::parse_job(job_of(c.sequence), kTruth);
    const job::Plan plan = job::parse_plan(plan_of(c.gpus, c.tp, c.pp, c.ep, c.vp, c.flags.is_null() ? json::object() : c.flags));
    try {
      const Result r = estimate_memory({job, plan, model, hardware::find_device("h100_sxm_80gb", "")});
      ADD_FAILURE() << "answered: " << r.memory.allocated_peak;
    } catch (const Error& e) {
      EXPECT_EQ(e.where, c.where) << e.message;
      EXPECT_FALSE(e.remedy.empty());
    }
  }
}

// Numbers: goldens/megatron_layer.py.
TEST(Megatron, ItsOwnLayersKeepWhatTheyKeepOnThePretendedGpu) {
  const json llama = {{"model_type", "llama"}, {"architectures", {"LlamaForCausalLM"}}, {"hidden_size", 512}, {"intermediate_size", 2048}, {"num_hidden_layers", 4}, {"num_attention_heads", 8},
                      {"num_key_value_heads", 2}, {"vocab_size", 50304}, {"max_position_embeddings", 1024}, {"rms_norm_eps", 1e-5}, {"hidden_act", "silu"}, {"tie_word_embeddings", false}};
  const auto kept = [&](const model::Model& model) {
    json j = job_of(1024);
    j["attention"] = "eager";
    json p = plan_of(1, 1, 1, 1, 1, {{"transformer-impl", "local"}, {"no-masked-softmax-fusion", true}});
    p["micro_batch"] = 4;
    const job::Job job = job::parse_job(j, kTruth);
    const job::Plan plan = job::parse_plan(p);
    const auto s = make_setup({job, plan, model, hardware::find_device("h100_sxm_80gb", "")});
    const Tape tape = block_tape(s, model.blocks[0], unit_sizes(s, model.blocks[0]), {.tokens = s.tokens, .encoder_tokens = s.tokens, .sequences = 4, .sequence = s.sequence});
    return static_cast<double>(tape.saved_bytes() + tape.bytes(tape.input));
  };
  EXPECT_NEAR(kept(model::load_model(kTruth + "/models/megatron-gpt-12x512.json")), 306249728, 0.005 * 306249728);
  EXPECT_NEAR(kept(model::parse_model(llama.dump(), "config.json")), 285769728, 0.005 * 285769728);
}

TEST(Megatron, BlockRecomputationKeepsTheLaterBlocks) {
  const model::Model model = model::load_model(kTruth + "/configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json");
  const job::Job job = job::parse_job(job_of(2048), kTruth);
  const auto peak = [&](const char* kind, const json& flags) {
    json p = plan_of(2, 1, 1, 1, 1, flags);
    p["activation_checkpointing"] = kind;
    p["micro_batch"] = 8;
    return estimate_memory({job, job::parse_plan(p), model, hardware::find_device("h100_sxm_80gb", "")}).memory.allocated_peak;
  };
  const auto block = [&](std::int64_t n) { return peak("full", {{"recompute-method", "block"}, {"recompute-num-layers", n}}); };
  EXPECT_EQ(block(22), peak("full", json::object()));
  EXPECT_EQ(block(100), block(22));
  EXPECT_EQ(peak("full", {{"recompute-method", "uniform"}, {"recompute-num-layers", 1}}), block(22));
  // groups of blocks: fewer inputs are kept, a whole group is alive when it is recomputed
  const auto uniform = [&](std::int64_t n) { return peak("full", {{"recompute-method", "uniform"}, {"recompute-num-layers", n}}); };
  EXPECT_GT(uniform(11), uniform(2));
  const std::int64_t without = peak("none", json::object()), logits = std::int64_t{8} * 2048 * 32000 * 6;   // 16-bit logits and the fp32 softmax
  EXPECT_LT(uniform(22), without);
  EXPECT_GT(uniform(22), without - logits) << "all blocks at once keep what no checkpointing keeps, but the loss is over by then";
  // each block that is recomputed saves the same
  const std::int64_t none = peak("none", json::object()), each = block(1) - block(2);
  EXPECT_GT(each, 0);
  EXPECT_NEAR(static_cast<double>(block(1) - block(11)), static_cast<double>(10 * each), 0.02 * static_cast<double>(10 * each));
  EXPECT_NEAR(static_cast<double>(none - block(1)), static_cast<double>(each), 0.3 * static_cast<double>(each));
}

TEST(Megatron, PredictionBlocksAddTheirLayerAndTheirLoss) {
  const model::Model model = model::load_model(kTruth + "/models/megatron-mla-moe-16x1024-dense1.json");
  const job::Job job = job::parse_job(job_of(1024), kTruth);
  const auto peak = [&](std::int64_t predictions) {
    const job::Plan plan = job::parse_plan(plan_of(8, 2, 2, 4, 1, {{"expert-tensor-parallel-size", 1}, {"mtp-num-layers", predictions}}));
    return estimate_memory({job, plan, model, hardware::find_device("h100_sxm_80gb", "")}).memory.by_stage;
  };
  const auto none = peak(0), one = peak(1), two = peak(2);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(none[0].allocated_peak, one[0].allocated_peak) << "the first stage has none of it";
  const std::int64_t logits = 1024 * 50304 / 2 * 4;                  // fp32, this rank's half of the vocabulary
  EXPECT_GT(one[1].allocated_peak - none[1].allocated_peak, logits);
  EXPECT_NEAR(static_cast<double>(two[1].allocated_peak - one[1].allocated_peak), static_cast<double>(one[1].allocated_peak - none[1].allocated_peak),
              0.35 * static_cast<double>(one[1].allocated_peak - none[1].allocated_peak));
}

}  // namespace
}  // namespace shardfit::memory
