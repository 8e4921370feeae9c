// What the selector predicts for CPU ranks against what the program measures: allocations of LibTorch, own buffers and
// mappings, to the byte; and the process's resident memory as a witness that does not know of either.
#include <sys/resource.h>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/own_runtime.hpp"
#include "selector/model/model.hpp"
#include "tests/runtime/train/program.hpp"

namespace shardfit::end_to_end {
namespace {

struct Setup {
  const char* family;
  int ranks, stage, micro_batch, accumulation;
  const char* checkpointing;
  const char* precision;
  const char* reshard = "true";
};

class PredictedMemory : public TrainTest, public testing::WithParamInterface<Setup> {
 protected:
  // A model drawn at random: large enough that a forgotten buffer shows.
  Json config() const {
    if (std::string(GetParam().family) == "gpt2")
      return {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}},
              {"n_embd", 192},        {"n_layer", 3},
              {"n_head", 6},          {"n_positions", 128},
              {"vocab_size", 3001}};
    return {{"model_type", GetParam().family}, {"hidden_size", 192},
            {"num_hidden_layers", 3},          {"num_attention_heads", 6},
            {"num_key_value_heads", 2},        {"head_dim", 32},
            {"intermediate_size", 520},        {"vocab_size", 3001},
            {"max_position_embeddings", 128},  {"rms_norm_eps", 1e-6},
            {"tie_word_embeddings", false},    {"hidden_act", "silu"}};
  }
};

void write_rows(const std::filesystem::path& file, int rows, int length) {
  std::ofstream out(file);
  for (int r = 0; r < rows; ++r) {
    Json ids = Json::array();
    for (int i = 0; i < length; ++i) ids.push_back((r * 131 + i * 17) % 2999);
    out << Json{{"input_ids", ids}}.dump() << "\n";
  }
}

TEST_P(PredictedMemory, EqualsTheMeasuredPeak) {
  const auto& setup = GetParam();
  std::filesystem::create_directories(folder_ / "model");
  std::ofstream(folder_ / "model/config.json") << config().dump();
  write_rows(folder_ / "rows.jsonl", 16, 100);
  // clang-format off
  const Json job = {{"model", "model/"}, {"sequence_length", 100}, {"precision", setup.precision}, {"duration", {{"steps", 2}}},
                    {"data", {{"train", "rows.jsonl"}, {"format", "jsonl"}, {"packing", false}}}, {"train", {{"init", "random"}, {"save_steps", 0}}}};
  const Json reshard = std::string(setup.reshard) == "true" ? Json(true) : std::string(setup.reshard) == "false" ? Json(false) : Json(setup.reshard);
  const Json plan = {{"gpu", "cpu"}, {"gpus_per_node", setup.ranks}, {"cpus_per_gpu", 1}, {"micro_batch", setup.micro_batch}, {"gradient_accumulation", setup.accumulation},
                     {"activation_checkpointing", setup.checkpointing},
                     {"sharding", {{"stage", setup.stage}, {"shard_degree", setup.ranks}, {"reshard_after_forward", reshard}}}};
  // clang-format on
  std::ofstream(folder_ / "plan.json") << plan.dump();
  const auto done = train(job, setup.ranks, "out", {"--plan", (folder_ / "plan.json").string()});
  ASSERT_EQ(done.size(), 2u);
  const auto predicted =
      memory::own_runtime_memory(model::load_model((folder_ / "model").string()),
                                 job::read_job((folder_ / "job.json").string()), job::parse_plan(plan));
  std::int64_t sum = 0;
  for (const auto& term : predicted.terms) sum += term.bytes;
  EXPECT_EQ(sum, predicted.allocated_peak);
  for (const auto& line : done) {
    const auto measured = line.at("memory").at("allocated_peak").get<std::int64_t>();
    EXPECT_EQ(line.at("memory").at("planned_peak").get<std::int64_t>(), predicted.allocated_peak);
    EXPECT_LE(std::abs(static_cast<double>(measured - predicted.allocated_peak)), 0.01 * static_cast<double>(measured))
        << "measured " << measured << ", predicted " << predicted.allocated_peak;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Setups, PredictedMemory,
    testing::Values(Setup{"llama", 1, 0, 1, 1, "none", "fp32"}, Setup{"llama", 1, 0, 4, 2, "none", "fp32"},
                    Setup{"llama", 2, 0, 2, 1, "none", "fp32"}, Setup{"llama", 4, 0, 1, 2, "none", "fp32"},
                    Setup{"llama", 2, 3, 2, 1, "none", "fp32"}, Setup{"llama", 2, 3, 1, 4, "none", "fp32"},
                    Setup{"llama", 3, 3, 2, 1, "full", "fp32"}, Setup{"llama", 4, 3, 1, 2, "none", "fp32"},
                    Setup{"llama", 2, 3, 4, 1, "full", "fp32"}, Setup{"llama", 2, 3, 2, 1, "none", "fp32", "false"},
                    Setup{"llama", 2, 3, 2, 1, "none", "bf16-mixed"}, Setup{"llama", 2, 0, 2, 2, "none", "bf16-mixed"},
                    Setup{"qwen3", 2, 3, 2, 1, "none", "fp32"}, Setup{"gpt2", 2, 3, 2, 1, "none", "fp32"},
                    Setup{"gpt2", 1, 0, 2, 1, "full", "bf16"}),
    [](const auto& info) {
      const auto& s = info.param;
      std::string name = std::string(s.family) + "_" + std::to_string(s.ranks) + "ranks_stage" +
                         std::to_string(s.stage) + "_micro" + std::to_string(s.micro_batch) + "x" +
                         std::to_string(s.accumulation) + "_" + s.checkpointing + "_" + s.precision + "_" + s.reshard;
      for (char& c : name)
        if (c == '-') c = '_';
      return name;
    });

// 420 MB of buffers on one rank: the growth of the resident peak over the libraries' own memory.
TEST_F(TrainTest, ResidentMemoryGrowsByThePredictedBytes) {
  std::filesystem::create_directories(folder_ / "model");
  std::ofstream(folder_ / "model/config.json") << Json{{"model_type", "llama"},          {"hidden_size", 512},
                                                       {"num_hidden_layers", 4},         {"num_attention_heads", 8},
                                                       {"intermediate_size", 1408},      {"vocab_size", 8000},
                                                       {"max_position_embeddings", 256}, {"rms_norm_eps", 1e-6},
                                                       {"tie_word_embeddings", true},    {"hidden_act", "silu"}}
                                                      .dump();
  write_rows(folder_ / "rows.jsonl", 4, 256);
  const Json job = {{"model", "model/"},
                    {"sequence_length", 256},
                    {"global_batch_sequences", 4},
                    {"precision", "fp32"},
                    {"duration", {{"steps", 2}}},
                    {"data", {{"train", "rows.jsonl"}, {"format", "jsonl"}, {"packing", false}}},
                    {"train", {{"init", "random"}, {"save_steps", 0}}}};
  std::ofstream(folder_ / "plan.json")
      << R"({"gpu":"cpu","gpus_per_node":1,"cpus_per_gpu":1,"micro_batch":4,"gradient_accumulation":1,"sharding":{"stage":0}})";
  const auto done = train(job, 1, "out", {"--plan", (folder_ / "plan.json").string()});
  ASSERT_EQ(done.size(), 2u);
  rusage children{};
  ::getrusage(RUSAGE_CHILDREN, &children);  // the largest child of this process: this run
  const auto base = events("out", "start").at(0).at("planned").at("host_base").get<double>();
  const auto allocated = done.back().at("memory").at("allocated_peak").get<double>();
  ASSERT_GT(allocated, 3e8);
  const double growth = static_cast<double>(children.ru_maxrss) * 1024 - base;
  EXPECT_NEAR(growth / allocated, 1, 0.05) << "resident " << growth << ", allocated " << allocated;
}

}  // namespace
}  // namespace shardfit::end_to_end
