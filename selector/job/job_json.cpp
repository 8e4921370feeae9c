// The canonical form of a job: every key, every default; read back it gives the same job.
#include <nlohmann/json.hpp>

#include "selector/job/job.hpp"

namespace shardfit::job {

namespace {

using Ordered = nlohmann::ordered_json;

template <class T>
Ordered or_null(const std::optional<T>& value) {
  return value ? Ordered(*value) : Ordered(nullptr);
}
Ordered or_null(const std::optional<DType>& value) {
  return value ? Ordered(std::string(name_of(*value))) : Ordered(nullptr);
}
Ordered text_or_null(const std::string& text) { return text.empty() ? Ordered(nullptr) : Ordered(text); }

Ordered method_json(const Method& m) {
  switch (m.kind) {
    case MethodKind::kFull: return "full";
    case MethodKind::kIa3:
      return {{"kind", "ia3"},
              {"targets", m.targets},
              {"feedforward", m.feedforward},
              {"modules_to_save", m.modules_to_save}};
    case MethodKind::kPartial: return {{"kind", "partial"}, {"trainable", m.trainable}};
    case MethodKind::kLora:
    case MethodKind::kQlora: break;
  }
  Ordered o = {{"kind", m.kind == MethodKind::kLora ? "lora" : "qlora"},
               {"rank", m.rank},
               {"alpha", m.alpha},
               {"dropout", m.dropout}};
  o["targets"] = m.targets;
  o["adapter_dtype"] = or_null(m.adapter_dtype);
  o["dora"] = m.dora;
  o["modules_to_save"] = m.modules_to_save;
  if (m.kind == MethodKind::kQlora) {
    o["quantization"] = std::string(name_of(m.quantization));
    o["double_quantization"] = m.double_quantization;
    o["quant_storage"] = or_null(m.quant_storage);
  }
  return o;
}

Ordered precision_json(const Precision& p) {
  if (!p.name.empty()) return p.name;
  return {{"parameters", or_null(p.parameters)}, {"master", or_null(p.master)},       {"compute", or_null(p.compute)},
          {"fp8_recipe", or_null(p.fp8_recipe)}, {"gradients", or_null(p.gradients)}, {"reduce", or_null(p.reduce)},
          {"autocast", or_null(p.autocast)},     {"norms", or_null(p.norms)}};
}

Ordered loss_json(const Loss& l) {
  if (!l.chunks && !l.chunk_tokens && !l.over && !l.keeps_outputs) return l.kind;
  return {{"kind", l.kind},
          {"chunks", or_null(l.chunks)},
          {"chunk_tokens", or_null(l.chunk_tokens)},
          {"over", or_null(l.over)},
          {"keeps_outputs", or_null(l.keeps_outputs)}};
}

Ordered train_json(const Train& t) {
  Ordered o = {{"learning_rate", t.learning_rate},
               {"lr_scheduler_type", t.lr_scheduler_type},
               {"warmup_steps", t.warmup_steps},
               {"weight_decay", t.weight_decay},
               {"adam_beta1", t.adam_beta1},
               {"adam_beta2", t.adam_beta2},
               {"adam_epsilon", t.adam_epsilon},
               {"max_grad_norm", t.max_grad_norm},
               {"seed", t.seed},
               {"min_lr_ratio", t.min_lr_ratio},
               {"save_steps", t.save_steps}};
  o["save_at"] = t.save_at;
  o["save_total_limit"] = t.save_total_limit;
  o["dataloader_drop_last"] = t.dataloader_drop_last;
  o["on_nonfinite"] = t.on_nonfinite;
  o["logging_steps"] = t.logging_steps;
  o["eval_steps"] = t.eval_steps;
  o["init"] = t.init;
  o["log_sample_ids"] = t.log_sample_ids;
  o["dropout"] = or_null(t.dropout);
  return o;
}

}  // namespace

nlohmann::ordered_json to_json(const Job& job) {
  Ordered o = Ordered::object();
  o["model"] = text_or_null(job.model);
  o["method"] = method_json(job.method);
  o["data"] = nullptr;
  if (job.data) {
    const auto& d = *job.data;
    o["data"] =
        Ordered{{"train", d.train},     {"eval", d.eval},       {"format", d.format},         {"text_key", d.text_key},
                {"packing", d.packing}, {"shuffle", d.shuffle}, {"tokens", or_null(d.tokens)}};
  }
  o["locations"] = job.locations.empty() ? Ordered(nullptr) : Ordered(job.locations);
  o["storage_gb"] = or_null(job.storage_gb);
  o["egress_gb"] = or_null(job.egress_gb);
  o["duration"] = nullptr;
  if (job.duration_tokens) o["duration"] = Ordered{{"tokens", *job.duration_tokens}};
  if (job.duration_steps) o["duration"] = Ordered{{"steps", *job.duration_steps}};
  if (job.duration_epochs) o["duration"] = Ordered{{"epochs", *job.duration_epochs}};
  o["sequence_length"] = job.sequence_length ? Ordered(job.sequence_length) : Ordered(nullptr);
  o["decoder_sequence_length"] = or_null(job.decoder_sequence_length);
  o["global_batch_sequences"] = job.global_batch_sequences ? Ordered(job.global_batch_sequences) : Ordered(nullptr);
  o["global_batch_tokens"] = or_null(job.global_batch_tokens);
  o["precision"] = precision_json(job.precision);
  o["optimizer"] = Ordered{{"name", job.optimizer.name},
                           {"implementation", or_null(job.optimizer.implementation)},
                           {"states", or_null(job.optimizer.states)},
                           {"in_backward", job.optimizer.in_backward},
                           {"paged", job.optimizer.paged}};
  o["attention"] = or_null(job.attention);
  o["loss"] = loss_json(job.loss);
  o["fused_kernels"] = or_null(job.fused_kernels);
  o["compile"] = job.compile;
  o["software"] = Ordered{{"torch", text_or_null(job.software_torch)}, {"cuda", text_or_null(job.software_cuda)}};
  o["framework"] = Ordered{{"name", job.framework.name},
                           {"version", text_or_null(job.framework.version)},
                           {"trainer", text_or_null(job.framework.trainer)},
                           {"trainer_version", text_or_null(job.framework.trainer_version)},
                           {"use_cache", or_null(job.framework.use_cache)},
                           {"label", text_or_null(job.framework.label)}};
  o["train"] = train_json(job.train);
  o["output"] = text_or_null(job.output);
  o["deadline"] = or_null(job.deadline_seconds);
  o["max_cost"] = nullptr;
  if (job.max_cost) o["max_cost"] = Ordered{{"amount", job.max_cost->amount}, {"currency", job.max_cost->currency}};
  o["pins"] = job.pins;
  return o;
}

}  // namespace shardfit::job
