#include "selector/job/plan.hpp"

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/job/framework_sections.hpp"

namespace shardfit::job {

namespace {

constexpr std::int64_t kMostRanks = 1 << 20, kMostBatch = 1 << 24, kMostBytes = std::int64_t{1} << 50;

Place place(ObjectReader& r, std::string_view key) {
  const auto word = r.one_of(key, {"none", "cpu", "nvme"}).value_or("none");
  return word == "cpu" ? Place::kCpu : word == "nvme" ? Place::kNvme : Place::kNone;
}

struct StatedSharding {
  std::optional<std::int64_t> shard, replicate;
};

StatedSharding parse_sharding(Plan& plan, const Json& value, const std::string& where) {
  ObjectReader r(value, where);
  auto& s = plan.sharding;
  StatedSharding stated;
  s.stage = static_cast<int>(r.integer("stage", 0, 3).value_or(0));
  stated.shard = r.integer("shard_degree", 1, kMostRanks);
  stated.replicate = r.integer("replicate_degree", 1, kMostRanks);
  if (const Json* v = r.get("reshard_after_forward")) {
    s.reshard_stated = true;
    if (v->is_boolean())
      s.reshard_after_forward = v->get<bool>() ? Sharding::Reshard::kTrue : Sharding::Reshard::kFalse;
    else if (v->is_string() && *v == "always") s.reshard_after_forward = Sharding::Reshard::kAlways;
    else if (v->is_number())
      s.reshard_after_forward = Sharding::Reshard::kOver,
      s.reshard_over = *r.integer("reshard_after_forward", 1, kMostRanks);
    else
      throw Error("wrong_type", r.at("reshard_after_forward"),
                  "true, false, \"always\" or a number of ranks is needed, not " + brief(*v));
  }
  s.over_context_parallel = r.boolean("over_context_parallel").value_or(false);
  r.finish();
  return stated;
}

void parse_checkpointing(Checkpointing& c, const Json& value, const std::string& where) {
  c.stated = true;
  if (value.is_string()) {
    const Json object = {{"activation_checkpointing", value}};
    const std::string parent = where.substr(0, where.rfind('/'));
    ObjectReader r(object, parent);
    c.kind = *r.one_of("activation_checkpointing", {"none", "full", "selective_op", "selective"});
    return;
  }
  ObjectReader r(value, where);
  c.kind = r.one_of("kind", {"none", "full", "selective", "selective_op"}).value_or("full");
  c.every = r.integer("every", 1, kMostRanks).value_or(1);
  c.reentrant = r.boolean("reentrant");
  c.modules = r.strings("modules").value_or(std::vector<std::string>{});
  c.save = r.one_of("save", {"all_compute", "every_other_mm"});
  r.finish();
}

void parse_offload(Offload& o, const Json& value, const std::string& where) {
  ObjectReader r(value, where);
  o.parameters = place(r, "parameters");
  o.gradients = place(r, "gradients");
  o.optimizer = place(r, "optimizer");
  o.activations = place(r, "activations");
  o.optimizer_fraction = r.number("optimizer_fraction", 0, 1).value_or(1);
  o.schedule = r.one_of("schedule", {"serial", "overlapped", "adaptive"}).value_or("serial");
  o.nvme_path = r.string("nvme_path").value_or("");
  o.pin = r.boolean("pin");
  o.buffers = r.integer("buffers", 1, 1 << 20);
  o.buffer_bytes = r.integer("buffer_bytes", 1, kMostBytes);
  o.tile_elements = r.integer("tile_elements", 1, kMostBytes);
  r.finish();
}

void parse_schedule(GatherSchedule& g, const Json& value, const std::string& where) {
  ObjectReader r(value, where);
  if (const Json* v = r.get("unit")) {
    if (v->is_string() && *v == "block") g.unit_blocks = 1;
    else if (v->is_number()) g.unit_blocks = *r.integer("unit", 1, kMostRanks);
    else if (v->is_array()) g.unit_classes = *r.strings("unit");
    else
      throw Error("wrong_type", r.at("unit"),
                  "\"block\", a number of blocks or a list of module classes is needed, not " + brief(*v));
  }
  g.prefetch_blocks = r.integer("prefetch_blocks", 0, kMostRanks);
  g.prefetch_bytes = r.integer("prefetch_bytes", 0, kMostBytes);
  g.gather_bucket_bytes = r.integer("gather_bucket_bytes", 0, kMostBytes);
  g.reduce_bucket_bytes = r.integer("reduce_bucket_bytes", 0, kMostBytes);
  g.keep_resident_below = r.integer("keep_resident_below", 0, kMostBytes);
  g.limit_gathers = r.boolean("limit_gathers");
  r.finish();
}

// Fills in the degrees that were not stated and checks the product.
void settle_degrees(Plan& plan, const StatedSharding& stated, const std::string& where) {
  auto& s = plan.sharding;
  const std::int64_t gpus = plan.gpus();
  const double model = static_cast<double>(plan.tensor_parallel) * static_cast<double>(plan.context_parallel) *
                       static_cast<double>(plan.pipeline.degree);
  const auto wrong = [&](const std::string& product) -> Error {
    return {"gpu_product", where + "/sharding",
            "shard_degree x replicate_degree x tensor_parallel x context_parallel x pipeline degree = " + product +
                ", but gpus_per_node x nodes = " + std::to_string(plan.gpus_per_node) + " x " +
                std::to_string(plan.nodes) + " = " + std::to_string(gpus),
            "make both equal"};
  };
  if (model > static_cast<double>(gpus) || gpus % static_cast<std::int64_t>(model) != 0)
    throw wrong("a multiple of " + std::to_string(static_cast<long long>(model)));
  const std::int64_t data = gpus / static_cast<std::int64_t>(model);
  if (!stated.shard && !stated.replicate) {
    s.shard_degree = s.stage == 0 ? 1 : data;
    s.replicate_degree = s.stage == 0 ? data : 1;
  } else {
    if (stated.shard) s.shard_degree = *stated.shard;
    if (stated.replicate) s.replicate_degree = *stated.replicate;
    if (!stated.shard) s.shard_degree = data % s.replicate_degree == 0 ? data / s.replicate_degree : 1;
    if (!stated.replicate) s.replicate_degree = data % s.shard_degree == 0 ? data / s.shard_degree : 1;
  }
  const double product = static_cast<double>(s.shard_degree) * static_cast<double>(s.replicate_degree) * model;
  if (product != static_cast<double>(gpus)) throw wrong(std::to_string(static_cast<long long>(product)));
  if (s.stage == 0)
    s.replicate_degree *= s.shard_degree, s.shard_degree = 1;  // nothing is sharded: both spellings mean replicas
  if (s.reshard_after_forward == Sharding::Reshard::kOver && s.shard_degree % s.reshard_over != 0)
    throw Error("out_of_range", where + "/sharding/reshard_after_forward",
                std::to_string(s.reshard_over) + " ranks do not divide shard_degree " + std::to_string(s.shard_degree),
                "use a divisor of shard_degree, true or false");
  if (gpus % plan.expert_parallel != 0)
    throw Error("out_of_range", where + "/expert_parallel",
                std::to_string(plan.expert_parallel) + " does not divide the " + std::to_string(gpus) + " GPUs",
                "use a divisor of the number of GPUs");
}

}  // namespace

Plan parse_plan(const Json& object, const std::string& where) {
  Plan plan;
  ObjectReader r(object, where);
  plan.gpu = r.required_string("gpu");
  if (trim(plan.gpu).empty()) throw Error("out_of_range", r.at("gpu"), "is empty", "name a device, e.g. h100_sxm_80gb");
  plan.gpus_per_node = r.integer("gpus_per_node", 1, 4096).value_or(1);
  plan.nodes = r.integer("nodes", 1, kMostRanks).value_or(1);
  plan.cpus_per_gpu = r.number("cpus_per_gpu", 0.01, 1e5);
  plan.device_memory_gib = r.number("device_memory_gib", 0.001, 1e6);
  StatedSharding stated;
  if (const Json* v = r.get("sharding")) stated = parse_sharding(plan, *v, r.at("sharding"));
  plan.tensor_parallel = r.integer("tensor_parallel", 1, kMostRanks).value_or(1);
  plan.sequence_parallel = r.boolean("sequence_parallel").value_or(false);
  plan.context_parallel = r.integer("context_parallel", 1, kMostRanks).value_or(1);
  plan.expert_parallel = r.integer("expert_parallel", 1, kMostRanks).value_or(1);
  if (const Json* v = r.get("pipeline_parallel")) {
    ObjectReader p(*v, r.at("pipeline_parallel"));
    plan.pipeline.degree = p.integer("degree", 1, kMostRanks).value_or(1);
    plan.pipeline.schedule = p.one_of("schedule", {"1f1b", "interleaved_1f1b", "gpipe"}).value_or("1f1b");
    plan.pipeline.virtual_stages = p.integer("virtual_stages", 1, kMostRanks);
    p.finish();
  }
  plan.micro_batch = r.integer("micro_batch", 1, kMostBatch).value_or(1);
  plan.gradient_accumulation = r.integer("gradient_accumulation", 1, kMostBatch).value_or(1);
  plan.accumulate_without_sync = r.boolean("accumulate_without_sync").value_or(false);
  if (const Json* v = r.get("activation_checkpointing"))
    parse_checkpointing(plan.checkpointing, *v, r.at("activation_checkpointing"));
  if (const Json* v = r.get("offload")) parse_offload(plan.offload, *v, r.at("offload"));
  if (const Json* v = r.get("schedule")) parse_schedule(plan.schedule, *v, r.at("schedule"));
  if (const Json* v = r.get("allocator")) {
    ObjectReader a(*v, r.at("allocator"));
    plan.expandable_segments = a.boolean("expandable_segments").value_or(false);
    a.finish();
  }
  plan.checkpoint_load = r.one_of("checkpoint_load", {"sharded", "full_copy_per_gpu"}).value_or("sharded");
  const auto section = [&](const char* key) -> Json {
    const Json* v = r.get(key);
    if (v && !v->is_object()) throw Error("wrong_type", r.at(key), "an object is needed, not " + brief(*v));
    return v ? *v : Json::object();
  };
  plan.deepspeed = section("deepspeed");
  plan.fsdp = section("fsdp");
  plan.megatron = section("megatron");
  r.finish();
  if (const int stage = apply_framework_sections(plan, where); stage >= 0) plan.sharding.stage = stage;
  settle_degrees(plan, stated, where);
  return plan;
}

Plan read_plan(const std::string& file) {
  try {
    return parse_plan(read_json_file(file));
  } catch (Error& e) {
    e.in_file(file);
    throw;
  }
}

}  // namespace shardfit::job
