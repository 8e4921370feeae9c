#include "tests/truth/families/family_rows.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "regions/base/files.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/pipeline.hpp"
#include "selector/memory/rank_replay.hpp"
#include "selector/memory/trace.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 1024, kImages = 16, kDecoder = 512;   // of measure.py

std::vector<std::string> parts_of(const std::string& variant) {
  std::vector<std::string> parts;
  std::istringstream text(variant);
  for (std::string part; std::getline(text, part, '-');) parts.push_back(part);
  return parts;
}

// What stays alive when each block has run.
std::vector<std::int64_t> kept_of(const Setup& s, const ModelSizes& sizes) {
  std::vector<std::int64_t> kept;
  Timeline t({.expandable_segments = true});
  TapeRunner run(t);
  std::vector<Saved> saved(sizes.order.size());
  Timeline::Handle x = Timeline::kNone;
  std::vector<Timeline::Handle> inputs, cache;
  for (std::size_t k = 0; k < sizes.order.size(); ++k) {
    const bool encoder = static_cast<std::int64_t>(k) < sizes.encoder_blocks;
    BlockShape shape;
    shape.sequences = s.micro_batch;
    shape.sequence = sizes.encoder_blocks > 0 && !encoder ? s.decoder_sequence : s.sequence;
    shape.tokens = s.micro_batch * shape.sequence;
    shape.encoder_tokens = s.tokens;
    const auto index = static_cast<std::size_t>(sizes.order[k]);
    const Tape tape = block_tape(s, s.model.blocks[index], sizes.blocks[index], shape);
    if (k == 0 || static_cast<std::int64_t>(k) == sizes.encoder_blocks) x = t.make(tape.bytes(tape.input), Term::kActivations);
    const std::int64_t before = t.allocated();
    TapeRunner::Forward how;
    how.save = s.checkpoint != Setup::Checkpoint::kFull;
    how.cache = &cache;
    const auto y = run.forward(tape, x, how, how.save ? &saved[k] : nullptr);
    if (!how.save) inputs.push_back(x);
    else t.drop(x);
    x = y;
    std::int64_t casts = s.autocast_cache ? sizes.blocks[index].matrices * s.compute_bytes : 0;
    kept.push_back(t.allocated() - before + casts);
  }
  return kept;
}

}  // namespace

std::vector<FamilyRow> family_rows(const std::string& file) {
  std::vector<FamilyRow> rows;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);) {
    if (line.empty()) continue;
    const auto j = nlohmann::json::parse(line);
    FamilyRow r{j.at("family"), j.at("variant"), j.at("transformers"), j.at("parameters"), {j.at("kept"), j.at("forward_peak"), j.at("loss_peak"), j.at("backward_peak")}};
    rows.push_back(std::move(r));
  }
  return rows;
}

std::string family_of(const FamilyRow& row, const std::string& configs) {
  return model::parse_model(nlohmann::json::parse(read_file(configs)).at(row.family).dump(), row.family).family;
}

BlockBytes predicted(const FamilyRow& row, const std::string& configs) {
  const auto all = nlohmann::json::parse(read_file(configs));
  const auto& config = all.at(row.family);
  const model::Model model = model::parse_model(config.dump(), row.family);
  const auto parts = parts_of(row.variant);
  const bool images = model.facts.count("image_tokens") > 0;
  const auto sequence = images ? static_cast<std::int64_t>(model.facts.at("image_tokens")) : kSequence;
  nlohmann::json job = {{"model", "."}, {"method", "full"}, {"sequence_length", sequence}, {"attention", parts[1] == "flash" ? "flash2" : parts[1]},
                        {"precision", parts[0] == "amp" ? "bf16-mixed" : parts[0]}, {"optimizer", {{"name", "adamw"}, {"implementation", "fused"}}},
                        {"framework", {{"name", "ddp"}, {"trainer", "transformers"}, {"trainer_version", row.transformers}}}};
  if (model.encoder_decoder) job["decoder_sequence_length"] = kDecoder;
  nlohmann::json plan = {{"gpu", "a100_sxm_80gb"}, {"gpus_per_node", 1}, {"micro_batch", images ? kImages : kBatch}, {"allocator", {{"expandable_segments", true}}}};   // no rests of segments counted
  if (parts.size() > 2) plan["activation_checkpointing"] = {{"kind", "full"}, {"reentrant", parts[2] == "reentrant"}};
  else plan["activation_checkpointing"] = "none";
  const auto j = job::parse_job(job, ".");
  const auto p = job::parse_plan(plan);
  const Setup s = make_setup({j, p, model, hardware::find_device("a100_sxm_80gb", "")});
  const ModelSizes sizes = model_sizes(s);
  BlockBytes b;
  b.kept = kept_of(s, sizes);
  std::vector<TracePoint> points;
  ReplayOptions options;
  options.every_block = true;
  options.trace = &points;
  const auto layouts = pipeline_stages(s, static_cast<std::int64_t>(sizes.order.size()));
  replay_rank(s, sizes, layouts.front(), options);
  std::int64_t base = 0;
  for (const auto& point : points)
    if (point.phase == Phase::kLoad) base = point.allocated;
  base += (s.tokens * 8 * 3 + 511) / 512 * 512;
  for (const auto& point : points) {
    if (point.step != 1) continue;
    auto* peak = point.phase == Phase::kForward ? &b.forward_peak : point.phase == Phase::kLoss ? &b.loss_peak : point.phase == Phase::kBackward ? &b.backward_peak : nullptr;
    if (peak) *peak = std::max(*peak, point.allocated - base);
  }
  return b;
}

}  // namespace shardfit::memory
