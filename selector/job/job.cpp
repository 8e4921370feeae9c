#include "selector/job/job.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/job/money.hpp"

namespace shardfit::job {

namespace {

// Limits above which a value is a slip of the pen: they keep every product of sizes inside 63 bits.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 50, kMostSequence = std::int64_t{1} << 27,
                       kMostBatch = std::int64_t{1} << 30, kMostSteps = std::int64_t{1} << 40;

std::optional<DType> dtype(ObjectReader& r, std::string_view key, const std::vector<std::string>& allowed) {
  const auto word = r.one_of(key, allowed);
  if (!word) return std::nullopt;
  return parse_dtype(*word, r.at(key));
}

std::vector<std::string> words_of(ObjectReader& r, std::string_view key) {
  auto list = r.strings(key).value_or(std::vector<std::string>{});
  for (size_t i = 0; i < list.size(); ++i)
    if (trim(list[i]).empty())
      throw Error("out_of_range", r.at(key) + "/" + std::to_string(i), "an empty name",
                  "write a name or leave the entry out");
  return list;
}

Method parse_method(const Json& value, const std::string& where) {
  Method m;
  if (value.is_string()) {
    const auto word = value.get<std::string>();
    if (word == "full") return m;
    throw Error(
        "unknown_word", where, "\"" + word.substr(0, 60) + "\" is not a method by name",
        "write \"full\" or an object such as {\"kind\": \"lora\", \"rank\": 16, \"targets\": [\"q_proj\", \"v_proj\"]}");
  }
  ObjectReader r(value, where);
  const auto kind = r.one_of("kind", {"full", "lora", "qlora", "ia3", "partial"});
  if (!kind) throw Error("missing_key", r.at("kind"), "is missing", "add \"kind\": full, lora, qlora, ia3 or partial");
  if (*kind == "lora" || *kind == "qlora") {
    m.kind = *kind == "lora" ? MethodKind::kLora : MethodKind::kQlora;
    m.rank = r.required_integer("rank", 1, 1 << 20);
    m.alpha = r.number("alpha", 0, 1e9).value_or(0);
    m.dropout = r.number("dropout", 0, 1).value_or(0);
    m.targets = words_of(r, "targets");
    m.adapter_dtype = dtype(r, "adapter_dtype", {"fp32", "bf16", "fp16"});
    m.dora = r.boolean("dora").value_or(false);
    m.modules_to_save = words_of(r, "modules_to_save");
    if (m.kind == MethodKind::kQlora) {
      m.quantization = dtype(r, "quantization", {"nf4", "int8", "int4"}).value_or(DType::kNf4);
      m.double_quantization = r.boolean("double_quantization").value_or(false);
      m.quant_storage = dtype(r, "quant_storage", {"uint8", "bf16", "fp16", "fp32"});
    }
  } else if (*kind == "ia3") {
    m.kind = MethodKind::kIa3;
    m.targets = words_of(r, "targets");
    m.feedforward = words_of(r, "feedforward");
    m.modules_to_save = words_of(r, "modules_to_save");
  } else if (*kind == "partial") {
    m.kind = MethodKind::kPartial;
    m.trainable = words_of(r, "trainable");
    if (m.trainable.empty())
      throw Error("missing_key", r.at("trainable"), "names no parameter to train",
                  "list parameter names or module prefixes, or use \"method\": \"full\"");
  }
  r.finish();
  return m;
}

// The short names' meaning. Engines that hold 16-bit parameters beside an fp32 master do so under "-mixed" too; what
// the name leaves to the engine (the format of gradients) stays unstated.
Precision named_precision(const std::string& name, const std::string& framework, const std::string& where) {
  Precision p;
  p.name = name;
  if (name == "fp32") {
    p.parameters = p.compute = p.gradients = p.reduce = DType::kFp32;
    p.master = DType::kNone;
  } else if (name == "bf16-mixed" || name == "fp16-mixed") {
    const DType half = name == "bf16-mixed" ? DType::kBf16 : DType::kFp16;
    const bool master = framework == "deepspeed" || framework == "megatron" || framework == "other";
    p.parameters = master ? half : DType::kFp32;
    p.master = master ? DType::kFp32 : DType::kNone;
    p.compute = half;
    p.reduce = DType::kFp32;
  } else if (name == "bf16") {
    p.parameters = p.compute = p.gradients = p.reduce = DType::kBf16;
    p.master = DType::kNone;
  } else {
    const std::vector<std::string> known = {"fp32", "bf16-mixed", "fp16-mixed", "bf16"};
    const auto near = nearest(name, known);
    throw Error(
        "unknown_word", where, "\"" + name.substr(0, 60) + "\" is not a precision",
        (near ? "did you mean \"" + *near + "\"? " : std::string()) + "Known: " + join(known, ", ") + ", or an object");
  }
  return p;
}

Precision parse_precision(const Json& value, const std::string& framework, const std::string& where) {
  if (value.is_string()) return named_precision(value.get<std::string>(), framework, where);
  Precision p;
  p.name.clear();
  ObjectReader r(value, where);
  p.parameters = dtype(r, "parameters", {"fp32", "bf16", "fp16", "nf4", "int8", "int4"});
  p.master = dtype(r, "master", {"fp32", "bf16", "none"});
  p.compute = dtype(r, "compute", {"bf16", "fp16", "fp32", "fp8"});
  p.fp8_recipe = r.one_of("fp8_recipe", {"delayed", "current", "tensorwise", "rowwise", "blockwise", "mxfp8"});
  p.gradients = dtype(r, "gradients", {"fp32", "bf16", "fp16"});
  p.reduce = dtype(r, "reduce", {"fp32", "bf16", "fp16"});
  p.autocast = r.boolean("autocast");
  p.norms = dtype(r, "norms", {"fp32", "bf16", "fp16"});
  r.finish();
  return p;
}

Optimizer parse_optimizer(const Json& value, const std::string& where) {
  Optimizer o;
  ObjectReader r(value, where);
  o.name = r.one_of("name", {"adamw", "adam", "sgd", "lion", "adafactor", "muon", "galore_adamw"}).value_or("adamw");
  o.implementation = r.one_of("implementation", {"fused", "foreach", "single", "cpu"});
  o.states = dtype(r, "states", {"fp32", "bf16", "int8", "int4"});
  o.in_backward = r.boolean("in_backward").value_or(false);
  o.paged = r.boolean("paged").value_or(false);
  r.finish();
  return o;
}

Loss parse_loss(const Json& value, const std::string& where) {
  const std::vector<std::string> kinds = {"plain", "fused", "chunked", "fused_linear"};
  Loss l;
  Json object = value;
  if (value.is_string()) object = Json{{"kind", value}};
  ObjectReader r(object, where);
  l.kind = r.one_of("kind", kinds).value_or("plain");
  l.chunks = r.integer("chunks", 1, 1 << 24);
  l.chunk_tokens = r.integer("chunk_tokens", 1, kMostSequence);
  l.over = r.one_of("over", {"logits", "hidden"});
  l.keeps_outputs = r.boolean("keeps_outputs");
  r.finish();
  if (l.chunks && l.chunk_tokens)
    throw Error("conflict", r.at("chunks"), "chunks and chunk_tokens are both stated", "keep one of them");
  return l;
}

Framework parse_framework(const Json& value, const std::string& where) {
  Framework f;
  ObjectReader r(value, where);
  f.name =
      r.one_of("name", {"shardfit", "fsdp2", "fsdp1", "deepspeed", "ddp", "megatron", "other"}).value_or("shardfit");
  f.version = r.string("version").value_or("");
  f.trainer = r.string("trainer").value_or("");
  f.trainer_version = r.string("trainer_version").value_or("");
  f.use_cache = r.boolean("use_cache");
  f.label = r.string("label").value_or("");
  r.finish();
  return f;
}

Train parse_train(const Json& value, const std::string& where) {
  Train t;
  ObjectReader r(value, where);
  const auto positive = [&](std::string_view key, double fallback) {
    const auto v = r.number(key);
    if (v && *v <= 0)
      throw Error("out_of_range", r.at(key), brief(*r.get(key)) + " is out of range", "it must be above 0");
    return v.value_or(fallback);
  };
  t.learning_rate = positive("learning_rate", t.learning_rate);
  t.adam_epsilon = positive("adam_epsilon", t.adam_epsilon);
  t.lr_scheduler_type =
      r.one_of("lr_scheduler_type", {"cosine", "linear", "constant", "wsd"}).value_or(t.lr_scheduler_type);
  t.warmup_steps = r.integer("warmup_steps", 0, kMostSteps).value_or(t.warmup_steps);
  t.weight_decay = r.number("weight_decay", 0, 1e6).value_or(t.weight_decay);
  t.adam_beta1 = r.number("adam_beta1", 0, 1).value_or(t.adam_beta1);
  t.adam_beta2 = r.number("adam_beta2", 0, 1).value_or(t.adam_beta2);
  for (const char* key : {"adam_beta1", "adam_beta2"})
    if (const Json* v = r.get(key); v && v->get<double>() >= 1)
      throw Error("out_of_range", r.at(key), brief(*v) + " is out of range", "it must be below 1");
  t.max_grad_norm = r.number("max_grad_norm", 0).value_or(t.max_grad_norm);
  t.seed = r.integer("seed", 0).value_or(t.seed);
  t.min_lr_ratio = r.number("min_lr_ratio", 0, 1).value_or(t.min_lr_ratio);
  t.save_steps = r.integer("save_steps", 0, kMostSteps).value_or(t.save_steps);
  if (const Json* list = r.get("save_at")) {
    if (!list->is_array()) throw Error("wrong_type", r.at("save_at"), "a list of steps is needed, not " + brief(*list));
    for (const auto& x : *list) {
      const auto at = r.at("save_at") + "/" + std::to_string(t.save_at.size());
      if (!x.is_number_integer() || x.get<double>() < 1 || x.get<double>() > static_cast<double>(kMostSteps))
        throw Error("out_of_range", at, "a step is needed, not " + brief(x), "steps are whole numbers from 1 on");
      t.save_at.push_back(x.get<std::int64_t>());
    }
  }
  t.save_total_limit = r.integer("save_total_limit", 0, 1 << 30).value_or(t.save_total_limit);
  t.dataloader_drop_last = r.boolean("dataloader_drop_last").value_or(t.dataloader_drop_last);
  t.on_nonfinite = r.one_of("on_nonfinite", {"stop", "skip"}).value_or(t.on_nonfinite);
  t.logging_steps = r.integer("logging_steps", 0, kMostSteps).value_or(t.logging_steps);
  t.eval_steps = r.integer("eval_steps", 0, kMostSteps).value_or(t.eval_steps);
  t.init = r.one_of("init", {"pretrained", "random"}).value_or(t.init);
  t.log_sample_ids = r.boolean("log_sample_ids").value_or(t.log_sample_ids);
  t.dropout = r.number("dropout", 0, 1);
  if (t.dropout && *t.dropout >= 1)
    throw Error("out_of_range", r.at("dropout"), "a dropout of 1 drops everything", "it must be below 1");
  r.finish();
  return t;
}

Data parse_data(const Json& value, const std::string& where) {
  Data d;
  ObjectReader r(value, where);
  d.train = words_of(r, "train");
  d.eval = words_of(r, "eval");
  d.format = r.one_of("format", {"text", "jsonl", "tokens"}).value_or(d.format);
  d.text_key = r.string("text_key").value_or(d.text_key);
  d.packing = r.boolean("packing").value_or(d.packing);
  d.shuffle = r.boolean("shuffle").value_or(d.shuffle);
  d.tokens = r.integer("tokens", 1, kMostTokens);
  r.finish();
  return d;
}

void parse_duration_object(Job& job, const Json& value, const std::string& where) {
  ObjectReader r(value, where);
  job.duration_tokens = r.integer("tokens", 1, kMostTokens);
  job.duration_steps = r.integer("steps", 1, kMostSteps);
  job.duration_epochs = r.number("epochs", 0, 1e9);
  r.finish();
  const int stated =
      int(job.duration_tokens.has_value()) + int(job.duration_steps.has_value()) + int(job.duration_epochs.has_value());
  if (stated != 1)
    throw Error(stated ? "conflict" : "missing_key", where,
                stated ? "more than one of tokens, steps and epochs is stated" : "states no length",
                "keep one of tokens, steps, epochs");
  if (job.duration_epochs && *job.duration_epochs <= 0)
    throw Error("out_of_range", r.at("epochs"), "0 is out of range", "it must be above 0");
}

}  // namespace

std::string Job::resolve(const std::string& path) const {
  const std::filesystem::path p(path);
  if (p.is_absolute() || base_dir.empty()) return path;
  return (std::filesystem::path(base_dir) / p).string();
}

std::string Job::model_path() const { return resolve(model); }

Job parse_job(const Json& object, const std::string& base_dir, const std::string& where) {
  Job job;
  job.base_dir = base_dir;
  ObjectReader r(object, where);
  job.model = r.string("model").value_or("");
  if (r.has("model") && trim(job.model).empty())
    throw Error("out_of_range", r.at("model"), "is empty", "name a Hugging Face folder or its config.json");
  if (const Json* v = r.get("framework")) job.framework = parse_framework(*v, r.at("framework"));
  if (const Json* v = r.get("method")) job.method = parse_method(*v, r.at("method"));
  if (const Json* v = r.get("data")) job.data = parse_data(*v, r.at("data"));
  if (const Json* v = r.get("locations")) {
    ObjectReader places(*v, r.at("locations"));
    for (const char* key : {"data", "checkpoints", "registry"})
      if (const auto place = places.string(key)) {
        if (trim(*place).empty())
          throw Error("out_of_range", places.at(key), "is empty", "write a country code or a region id");
        job.locations[key] = *place;
      }
    places.finish();
  }
  job.storage_gb = r.number("storage_gb", 0, 1e12);
  job.egress_gb = r.number("egress_gb", 0, 1e12);
  if (const Json* v = r.get("duration")) parse_duration_object(job, *v, r.at("duration"));
  job.sequence_length = r.integer("sequence_length", 1, kMostSequence).value_or(0);
  job.decoder_sequence_length = r.integer("decoder_sequence_length", 1, kMostSequence);
  job.global_batch_sequences = r.integer("global_batch_sequences", 1, kMostBatch).value_or(0);
  job.global_batch_tokens = r.integer("global_batch_tokens", 1, kMostTokens);
  if (job.global_batch_sequences && job.global_batch_tokens)
    throw Error("conflict", r.at("global_batch_tokens"),
                "global_batch_sequences and global_batch_tokens are both stated", "keep one of them");
  if (const Json* v = r.get("precision")) job.precision = parse_precision(*v, job.framework.name, r.at("precision"));
  else job.precision = named_precision("bf16-mixed", job.framework.name, r.at("precision"));
  if (const Json* v = r.get("optimizer")) job.optimizer = parse_optimizer(*v, r.at("optimizer"));
  job.attention = r.one_of("attention", {"flash", "flash1", "flash2", "flash3", "cudnn", "flex", "sdpa", "eager"});
  if (const Json* v = r.get("loss")) job.loss = parse_loss(*v, r.at("loss"));
  if (auto kernels = r.strings("fused_kernels")) {
    const std::vector<std::string> known = {"swiglu", "rms_norm", "rope"};
    for (size_t i = 0; i < kernels->size(); ++i)
      if (std::find(known.begin(), known.end(), (*kernels)[i]) == known.end()) {
        const auto near = nearest((*kernels)[i], known);
        throw Error("unknown_word", r.at("fused_kernels") + "/" + std::to_string(i),
                    "\"" + (*kernels)[i].substr(0, 60) + "\" is not known here",
                    (near ? "did you mean \"" + *near + "\"? " : std::string()) + "Known: " + join(known, ", "));
      }
    job.fused_kernels = std::move(*kernels);
  }
  job.compile = r.one_of("compile", {"none", "block", "block+loss", "model", "graph"}).value_or("none");
  if (const Json* v = r.get("software")) {
    ObjectReader software(*v, r.at("software"));
    job.software_torch = software.string("torch").value_or("");
    job.software_cuda = software.string("cuda").value_or("");
    software.finish();
  }
  if (const Json* v = r.get("train")) job.train = parse_train(*v, r.at("train"));
  job.output = r.string("output").value_or("");
  if (const Json* v = r.get("deadline")) job.deadline_seconds = parse_deadline(*v, r.at("deadline"));
  if (const Json* v = r.get("max_cost")) job.max_cost = parse_money(*v, r.at("max_cost"));
  job.pins = words_of(r, "pins");
  r.finish();
  if (job.duration_epochs && !job.data)
    throw Error("missing_key", r.at("data"), "is missing, and the duration counts epochs of it",
                "add \"data\", or state the duration in tokens or steps");
  return job;
}

void require_estimable(const Job& job, const std::string& where) {
  if (job.model.empty())
    throw Error("missing_key", where + "/model", "is missing",
                "add \"model\": a Hugging Face folder or its config.json");
  if (job.sequence_length == 0)
    throw Error("missing_key", where + "/sequence_length", "is missing",
                "add \"sequence_length\" in tokens, e.g. 4096");
}

Job read_job(const std::string& file) {
  try {
    const auto folder = std::filesystem::path(file).parent_path();
    Job job = parse_job(read_json_file(file), folder.string());
    job.file = file;
    require_estimable(job);
    return job;
  } catch (Error& e) {
    e.in_file(file);
    throw;
  }
}

}  // namespace shardfit::job
