// What is written for other engines, for a grid of jobs and plans, letter by letter: exports/goldens.json holds texts
// that the engines' own parsers have read (exports/load_exports.py says which releases, and what each made of them).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "plugin/handoff/exports.hpp"
#include "regions/base/json.hpp"

namespace shardfit::handoff {
namespace {

const std::string kFolder = SHARDFIT_SOURCE_DIR "/tests/plugin/handoff/exports/";

OrderedJson texts(const Json& job_changes, const Json& plan_changes) {
  Json j = parse_json(
      R"({"model": "m/", "sequence_length": 4096, "global_batch_sequences": 64, "precision": "bf16-mixed", "data": {"train": "corpus"},
          "train": {"learning_rate": 3e-4, "adam_beta2": 0.95, "weight_decay": 0.1, "warmup_steps": 10}, "duration": {"steps": 100}})");
  j.update(job_changes);
  Json p = parse_json(
      R"({"gpu": "h100_sxm_80gb", "gpus_per_node": 8, "nodes": 2, "sharding": {"stage": 3, "shard_degree": 16}, "micro_batch": 2,
          "gradient_accumulation": 2, "activation_checkpointing": "full"})");
  p.merge_patch(plan_changes);
  const auto job = job::parse_job(j, "/base");
  const auto plan = job::parse_plan(p);
  job::check_plan_against_job(job, plan);
  return {{"deepspeed.json", deepspeed_json(job, plan)},
          {"accelerate_fsdp.yaml", accelerate_yaml(job, plan)},
          {"torchtitan.args", torchtitan_args(job, plan)},
          {"torchtitan.toml", torchtitan_toml(job, plan)}};
}

TEST(Exports, AreTheTextsThatTheEnginesHaveRead) {
  OrderedJson written;
  for (const auto& row : read_json_file(kFolder + "grid.json"))
    written[row.at("name").get<std::string>()] = texts(row.at("job"), row.at("plan"));
  // After a change of the exports: write them anew with this variable, then run load_exports.py.
  if (const char* path = std::getenv("SHARDFIT_WRITE_EXPORTS")) std::ofstream(path) << written.dump(1) << "\n";
  const auto goldens = read_json_file(kFolder + "goldens.json");
  ASSERT_EQ(written.size(), goldens.size());
  ASSERT_GE(written.size(), 20u);
  for (const auto& [name, files] : written.items())
    for (const auto& [file, text] : files.items())
      EXPECT_EQ(text.get<std::string>(), goldens.at(name).at(file).get<std::string>()) << name << ", " << file;
}

}  // namespace
}  // namespace shardfit::handoff
