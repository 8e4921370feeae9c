// What holds for every job: terms sum to the peak, more ranks never keep more of what is sharded, and more work never needs less memory.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/rank_replay.hpp"
#include "selector/model/model.hpp"
#include "tests/fuzz/cases.hpp"

namespace shardfit::memory {
namespace {

using nlohmann::json;

const std::string kBase = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";
constexpr const char* kModels[] = {"configs/TinyLlama__TinyLlama-1.1B-Chat-v1.0.json", "configs/openai-community__gpt2-medium.json", "configs/Qwen__Qwen3-0.6B.json",
                                   "configs/GaLore__llama_1b.json", "configs/deepseek-ai__DeepSeek-V2-Lite.json", "configs/google-t5__t5-small.json"};
constexpr const char* kFrameworks[] = {"fsdp1", "fsdp2", "deepspeed", "ddp", "megatron"};

struct Point {
  const char* framework = "fsdp2";
  int stage = 3;
  std::int64_t ranks = 4, micro_batch = 1, sequence = 1024;
  const char* checkpointing = "none";
  const char* attention = "flash";
  json method = "full";
};

Result estimate(const model::Model& model, const char* file, const Point& p) {
  const job::Job job = job::parse_job({{"model", file}, {"method", p.method}, {"sequence_length", p.sequence}, {"precision", "bf16-mixed"}, {"attention", p.attention},
                                       {"framework", {{"name", p.framework}}}},
                                      kBase);
  const job::Plan plan = job::parse_plan({{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", p.ranks}, {"micro_batch", p.micro_batch}, {"activation_checkpointing", p.checkpointing},
                                          {"sharding", {{"stage", p.stage}, {"shard_degree", p.stage ? p.ranks : 1}, {"replicate_degree", p.stage ? 1 : p.ranks}}}});
  return estimate_memory({job, plan, model, hardware::find_device("h100_sxm_80gb", "")});
}

int stage_of(const std::string& framework) { return framework == "ddp" ? 0 : framework == "megatron" ? 1 : 3; }

TEST(Properties, TermsSumToTheDevicePeak) {
  for (const char* file : kModels) {
    const model::Model model = model::load_model(kBase + "/" + file);
    for (const char* framework : kFrameworks)
      for (const char* checkpointing : {"none", "full"}) {
        SCOPED_TRACE(std::string(file) + " " + framework + " " + checkpointing);
        const Result r = estimate(model, file, {.framework = framework, .stage = stage_of(framework), .checkpointing = checkpointing});
        std::int64_t sum = 0, last = std::numeric_limits<std::int64_t>::max();
        for (const auto& term : r.memory.terms) {
          EXPECT_GT(term.bytes, 0) << term.name;
          EXPECT_LE(term.bytes, last) << term.name << " is out of order";
          last = term.bytes;
          sum += term.bytes;
        }
        EXPECT_EQ(sum, r.memory.device_peak);
        EXPECT_LE(r.memory.allocated_peak, r.memory.reserved_peak);
        EXPECT_LE(r.memory.reserved_peak, r.memory.device_peak);
        EXPECT_LE(r.memory.allocated_peak, r.memory.allocated_peak_high);
        EXPECT_LE(r.memory.device_peak, r.memory.device_peak_high);
        EXPECT_EQ(r.parameters_total, model.parameters());
      }
  }
}

// Bytes that one rank keeps between steps of what the stage shards.
std::int64_t sharded_state(const model::Model& model, const char* file, const char* framework, int stage, std::int64_t ranks) {
  const job::Job job = job::parse_job({{"model", file}, {"method", "full"}, {"sequence_length", 512}, {"precision", "bf16-mixed"}, {"framework", {{"name", framework}}}}, kBase);
  const job::Plan plan = job::parse_plan({{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", ranks}, {"sharding", {{"stage", stage}, {"shard_degree", ranks}}}});
  const Request request{job, plan, model, hardware::find_device("h100_sxm_80gb", "")};
  const Setup setup = make_setup(request);
  const ModelSizes sizes = model_sizes(setup);
  double bytes = 0;
  const auto add = [&](const UnitSizes& u) {
    bytes += static_cast<double>(u.trained_shard) * (setup.states * setup.state_bytes + setup.master_bytes);
    if (stage == 3) bytes += static_cast<double>(u.rest_shard_bytes);
  };
  for (auto k : sizes.order) add(sizes.blocks[static_cast<std::size_t>(k)]);
  add(sizes.embedding);
  add(sizes.head);
  return static_cast<std::int64_t>(bytes);
}

TEST(Properties, MoreRanksNeverKeepMoreShardedState) {
  for (const char* file : kModels) {
    const model::Model model = model::load_model(kBase + "/" + file);
    for (const auto& [framework, stage] : {std::pair{"fsdp1", 3}, std::pair{"fsdp2", 3}, std::pair{"deepspeed", 1}, std::pair{"deepspeed", 2}, std::pair{"deepspeed", 3}}) {
      std::int64_t last = std::numeric_limits<std::int64_t>::max();
      for (const std::int64_t ranks : {1, 2, 3, 4, 7, 8, 16, 64, 512}) {
        const std::int64_t now = sharded_state(model, file, framework, stage, ranks);
        EXPECT_LE(now, last) << file << " " << framework << " stage " << stage << ", " << ranks << " ranks";
        EXPECT_GT(now, 0);
        last = now;
      }
    }
  }
}

// 1 %: torch counts as allocated what it does not cut off a segment (up to 1 MiB a tensor), so a tensor that is a little longer and
// fills its segment can take less; larger steps than that may not.
void expect_not_less(std::int64_t more, std::int64_t less, const std::string& what) {
  EXPECT_GE(static_cast<double>(more), static_cast<double>(less) * 0.99) << what;
}

TEST(Properties, LongerSequencesAndLargerMicroBatchesNeverNeedLess) {
  for (const char* file : kModels) {
    const model::Model model = model::load_model(kBase + "/" + file);
    for (const char* framework : kFrameworks)
      for (const char* checkpointing : {"none", "full"})
        for (const char* attention : {"flash", "eager"}) {
          const std::string what = std::string(file) + " " + framework + " " + checkpointing + " " + attention;
          Point p{.framework = framework, .stage = stage_of(framework), .checkpointing = checkpointing, .attention = attention};
          std::int64_t last = 0;
          for (const std::int64_t micro : {1, 2, 3, 4, 8}) {
            p.micro_batch = micro;
            const std::int64_t now = estimate(model, file, p).memory.allocated_peak;
            expect_not_less(now, last, what + ", micro batch " + std::to_string(micro));
            last = now;
          }
          p.micro_batch = 2;
          last = 0;
          for (const std::int64_t sequence : {128, 512, 1000, 2048, 4096}) {
            p.sequence = sequence;
            const std::int64_t now = estimate(model, file, p).memory.allocated_peak;
            expect_not_less(now, last, what + ", sequence " + std::to_string(sequence));
            last = now;
          }
        }
  }
}

TEST(Properties, CheckpointingAndShardingNeverNeedMore) {
  for (const char* file : kModels) {
    const model::Model model = model::load_model(kBase + "/" + file);
    for (const char* framework : kFrameworks) {
      Point p{.framework = framework, .stage = stage_of(framework), .micro_batch = 4, .sequence = 2048};
      const std::int64_t kept = estimate(model, file, p).memory.allocated_peak;
      p.checkpointing = "full";
      expect_not_less(kept, estimate(model, file, p).memory.allocated_peak, std::string(file) + " " + framework + " checkpointed");
    }
    std::int64_t last = std::numeric_limits<std::int64_t>::max();
    for (const int stage : {0, 1, 3}) {
      const std::int64_t now = estimate(model, file, {.framework = "fsdp2", .stage = stage == 1 ? 3 : stage, .ranks = stage == 1 ? 2 : 8}).memory.allocated_peak;
      expect_not_less(last, now, std::string(file) + " stage " + std::to_string(stage));
      last = now;
    }
  }
}

TEST(Properties, FrozenWeightsNeedNoMoreThanTrainedOnes) {
  for (const char* file : {kModels[0], kModels[2]}) {
    const model::Model model = model::load_model(kBase + "/" + file);
    for (const char* framework : {"fsdp1", "fsdp2", "ddp"}) {
      Point p{.framework = framework, .stage = stage_of(framework)};
      const std::int64_t full = estimate(model, file, p).memory.allocated_peak;
      p.method = {{"kind", "lora"}, {"rank", 16}, {"targets", {"q_proj", "v_proj"}}};
      const Result lora = estimate(model, file, p);
      EXPECT_LT(lora.memory.allocated_peak, full) << file << " " << framework;
      EXPECT_LT(lora.parameters_trainable, model.parameters() / 100);
    }
  }
}

// The same over jobs and plans at random: every framework with its own keys, methods, schedules, pipelines.
class RandomJobs : public testing::Test {
 protected:
  struct Drawn {
    json job, plan;
    const model::Model* model;
    Result result;
  };

  static std::optional<Result> estimate(const model::Model& model, const json& j, const json& p) {
    try {
      const auto job = job::parse_job(j, kBase, "/job");
      const auto plan = job::parse_plan(p, "/plan");
      job::check_plan_against_job(job, plan);
      return estimate_memory({job, plan, model, hardware::find_device(plan.gpu, "")});
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // Calls `body` with each of so many random jobs that can be estimated.
  template <class F>
  void each(int wanted, std::uint64_t seed, F&& body) {
    std::map<std::string, model::Model> models;
    int estimated = 0;
    for (int i = 0; i < 20 * wanted && estimated < wanted; ++i) {
      fuzz::Random r(seed + static_cast<std::uint64_t>(i));
      const std::string file = kModels[r.below(std::size(kModels))];
      Drawn d{.job = fuzz::job_of(r), .plan = fuzz::plan_of(r)};
      d.job["model"] = file;
      d.job.erase("global_batch_sequences");
      d.plan["device_memory_gib"] = 100000;   // the limit changes what the allocator keeps
      if (d.plan["gpu"] == "cpu") d.plan["gpu"] = "a100_sxm_80gb";
      const std::string framework = d.job["framework"]["name"];
      for (const char* section : {"deepspeed", "fsdp", "megatron"})
        if (framework.rfind(section, 0) != 0) d.plan.erase(section);
      if (!models.contains(file)) models.emplace(file, model::load_model(kBase + "/" + file));
      d.model = &models.at(file);
      const auto result = estimate(*d.model, d.job, d.plan);
      if (!result) continue;
      ++estimated;
      d.result = *result;
      SCOPED_TRACE(d.job.dump() + " " + d.plan.dump());
      body(d);
    }
    EXPECT_EQ(estimated, wanted);
  }
};

TEST_F(RandomJobs, TheSameInputGivesTheSameEstimate) {
  each(60, 11000, [](const Drawn& d) {
    const auto again = estimate(*d.model, d.job, d.plan);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->memory.allocated_peak, d.result.memory.allocated_peak);
    EXPECT_EQ(again->memory.reserved_peak, d.result.memory.reserved_peak);
    EXPECT_EQ(again->memory.device_peak_high, d.result.memory.device_peak_high);
    EXPECT_EQ(again->memory.host, d.result.memory.host);
    EXPECT_EQ(again->fits, d.result.fits);
    std::int64_t sum = 0;
    for (const auto& t : d.result.memory.terms) sum += t.bytes;
    EXPECT_EQ(sum, d.result.memory.device_peak);
    EXPECT_LE(d.result.memory.allocated_peak, d.result.memory.reserved_peak);
    EXPECT_LE(d.result.needed_low, d.result.needed_high);
  });
}

TEST_F(RandomJobs, MoreWorkNeverNeedsLess) {
  each(60, 22000, [](const Drawn& d) {
    json plan = d.plan, job = d.job;
    plan["micro_batch"] = 2 * plan["micro_batch"].get<int>();
    if (const auto r = estimate(*d.model, d.job, plan)) expect_not_less(r->memory.allocated_peak, d.result.memory.allocated_peak, "micro batch doubled");
    job["sequence_length"] = 2 * job["sequence_length"].get<int>();
    if (const auto r = estimate(*d.model, job, d.plan)) expect_not_less(r->memory.allocated_peak, d.result.memory.allocated_peak, "sequence doubled");
  });
}

TEST_F(RandomJobs, MoreRanksNeverNeedMore) {
  each(60, 33000, [](const Drawn& d) {
    if (d.plan["sharding"]["stage"] == 0 || d.plan.contains("fsdp")) return;
    json plan = d.plan;
    plan["nodes"] = 2 * plan["nodes"].get<int>();
    plan["sharding"]["shard_degree"] = 2 * plan["sharding"]["shard_degree"].get<int>();
    if (d.plan["sharding"]["shard_degree"] == 1) return;   // sharding itself brings buffers
    if (const auto r = estimate(*d.model, d.job, plan)) expect_not_less(d.result.memory.allocated_peak, r->memory.allocated_peak, "twice the ranks");
  });
}

TEST_F(RandomJobs, OffloadedActivationsNeverNeedMore) {
  each(40, 44000, [](const Drawn& d) {
    json plan = d.plan;
    if (plan.contains("offload") && plan["offload"]["activations"] != "none") return;
    plan["offload"]["activations"] = "cpu";
    if (const auto r = estimate(*d.model, d.job, plan)) expect_not_less(d.result.memory.allocated_peak, r->memory.allocated_peak, "activations offloaded");
  });
}

// A model that is larger than the engine's fixed buffers: for smaller ones these may weigh more than what leaves.
TEST(Properties, OffloadNeverRaisesTheDevicePeak) {
  const char* file = "configs/meta-llama__Meta-Llama-3-8B.json";
  const model::Model model = model::load_model(kBase + "/" + file);
  const auto peak = [&](const char* framework, int stage, json offload, const char* checkpointing) {
    const auto job = job::parse_job({{"model", file}, {"method", "full"}, {"sequence_length", 2048}, {"precision", "bf16-mixed"}, {"framework", {{"name", framework}}}}, kBase);
    json plan = {{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", 8}, {"activation_checkpointing", checkpointing}, {"sharding", {{"stage", stage}, {"shard_degree", 8}}}};
    if (!offload.is_null()) plan["offload"] = std::move(offload);
    return estimate_memory({job, job::parse_plan(plan), model, hardware::find_device("h100_sxm_80gb", "")}).memory.allocated_peak;
  };
  const json all = {{"parameters", "cpu"}, {"gradients", "cpu"}, {"optimizer", "cpu"}}, optimizer = {{"optimizer", "cpu"}};
  for (const char* checkpointing : {"none", "full"}) {
    for (const char* framework : {"fsdp1", "fsdp2"}) expect_not_less(peak(framework, 3, nullptr, checkpointing), peak(framework, 3, all, checkpointing), framework);
    for (const int stage : {1, 2, 3}) expect_not_less(peak("deepspeed", stage, nullptr, checkpointing), peak("deepspeed", stage, optimizer, checkpointing), "ZeRO optimizer");
    expect_not_less(peak("deepspeed", 3, optimizer, checkpointing), peak("deepspeed", 3, {{"optimizer", "cpu"}, {"parameters", "cpu"}}, checkpointing), "ZeRO parameters");
    // the more of the states is offloaded, the less is there
    std::int64_t last = peak("deepspeed", 3, {{"optimizer", "cpu"}, {"optimizer_fraction", 0.25}}, checkpointing);
    for (const double fraction : {0.5, 0.75, 1.0}) {
      const auto now = peak("deepspeed", 3, {{"optimizer", "cpu"}, {"optimizer_fraction", fraction}}, checkpointing);
      expect_not_less(last, now, "fraction " + std::to_string(fraction));
      last = now;
    }
  }
}

}  // namespace
}  // namespace shardfit::memory
