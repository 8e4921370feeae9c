#include "selector/memory/unit_sizes.hpp"

#include <algorithm>
#include <cmath>

#include "selector/memory/optimizer_rules.hpp"
#include "selector/memory/setup_parts.hpp"

namespace shardfit::memory {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Layers whose input is split, so that each rank adds the whole bias once (RowParallelLinear, RowwiseParallel).
bool row_parallel(const std::string& module) {
  for (const char* end : {"o_proj", "out_proj", "c_proj", "down_proj", "attention.dense", "self_attention.dense", "output.dense", "dense_4h_to_h", "fc2", "fc_out", "w2"}) {
    const std::string_view name(end);
    if (module.size() >= name.size() && module.compare(module.size() - name.size(), name.size(), name) == 0) return true;
  }
  return false;
}

bool replicated_under_tp(const Setup& s, const model::Block& block, const model::Parameter& p) {
  using K = model::Parameter::Kind;
  // of latent attention: whole on every rank with Transformer Engine's layers ("duplicated"), split with Megatron's own
  const bool down_projection = (p.module.find("q_a_proj") != std::string::npos || p.module.find("kv_a_proj") != std::string::npos) && !(s.engine == Engine::kMegatron && megatron_word(s.plan, "transformer-impl") == "local");
  if (p.kind == K::kBias) {             // with its matrix, where each rank has some of the outputs
    const bool of_matrix = std::any_of(block.parameters.begin(), block.parameters.end(), [&](const auto& other) { return other.kind == K::kMatrix && other.module == p.module; });
    return !of_matrix || row_parallel(p.module) || down_projection;
  }
  if (p.kind != K::kMatrix && p.kind != K::kEmbedding) return true;
  if (p.name.find("position") != std::string::npos || p.name.find("wpe") != std::string::npos || p.name.find("token_type") != std::string::npos) return true;
  return down_projection;
}

// Elements that one of `ranks` keeps of a tensor of `elements` with `rows` rows.
std::int64_t shard_of(const Setup& s, std::int64_t elements, std::int64_t rows, std::int64_t ranks) {
  if (ranks <= 1 || elements == 0) return elements;
  if (s.engine == Engine::kFsdp2) return divide_up(rows, ranks) * (elements / std::max<std::int64_t>(1, rows));  // chunks of dim 0
  return divide_up(elements, ranks);
}

}  // namespace

UnitSizes unit_sizes(const Setup& s, const model::Block& block, bool table_only) {
  UnitSizes u;
  const auto& method = s.job.method;
  using Kind = model::Parameter::Kind;
  u.roles.resize(block.parameters.size());
  u.adapter.assign(block.ops.size(), 0);
  u.adapter_out.assign(block.ops.size(), 0);
  const bool in_body = &block != &s.model.embedding && &block != &s.model.head;
  double rest = 0, rest_shard = 0, gather = 0;
  const bool flat = s.engine == Engine::kFsdp1;
  const double gather_each = s.adapters.any && s.trainer == "transformers" ? s.parameter_bytes : s.compute_bytes;
  for (std::size_t i = 0; i < block.parameters.size(); ++i) {
    const auto& p = block.parameters[i];
    if (table_only && (p.shape.size() != 2 || p.shape[0] != s.model.vocabulary)) continue;
    auto& role = u.roles[i];
    const std::int64_t whole = p.elements();
    switch (method.kind) {
      case job::MethodKind::kFull: role.trainable = true; break;
      case job::MethodKind::kPartial: role.trainable = names_module(method.trainable, p.module, block.prefix.empty() ? p.name : block.prefix + "." + p.name); break;
      default: role.trainable = !method.modules_to_save.empty() && names_module(method.modules_to_save, p.module, p.module); break;
    }
    role.quantized = s.quantized && in_body && (p.kind == Kind::kMatrix || (p.kind == Kind::kExpert && experts_are_linear_layers(s))) && !role.trainable;
    // peft/utils/other.py ModulesToSaveWrapper: a trained copy beside the original, in its format (autocast_adapter_dtype leaves it alone)
    const bool saved_copy = role.trainable && s.adapters.any && s.dialect.lora == LoraStyle::kPeft;
    u.whole_elements += whole;
    if (role.trainable) u.whole_trainable += whole;
    std::int64_t e = whole, rows = p.shape.empty() ? 1 : p.shape[0];
    std::int64_t ranks = s.shard;
    const bool of_experts = p.kind == Kind::kExpert || (p.kind == Kind::kBias && p.shape.size() == 2 && p.module.find("experts") != std::string::npos);
    if (of_experts) {
      if (s.ep > 1 || s.etp > 1 || s.engine == Engine::kMegatron) {
        e = divide_up(e, s.ep * s.etp);
        ranks = s.expert_shard;
      } else if (s.tp > 1) {
        e = divide_up(e, s.tp);
      }
      rows = std::max<std::int64_t>(1, std::min(rows, e));
      u.expert_elements += e;
    } else if (s.tp > 1 && !replicated_under_tp(s, block, p)) {
      e = divide_up(e, s.tp);
      rows = divide_up(rows, s.tp);
    }
    if (&block == &s.model.head || &block == &s.model.embedding) {
      if (p.shape.size() == 2 && p.shape[0] == s.model.vocabulary && s.padded_vocabulary() != s.model.vocabulary)
        e = divide_up(s.padded_vocabulary(), s.tp) * p.shape[1];
    }
    u.elements += e;
    if (p.kind == Kind::kMatrix || p.kind == Kind::kExpert) {
      u.matrices += e;
      if (role.trainable) u.trained_matrices += e;
    }
    const double each = role.quantized ? s.quantized_bytes : s.parameter_bytes;
    rest += each * static_cast<double>(e);
    gather += (role.quantized ? s.quantized_bytes : gather_each) * static_cast<double>(e);
    const std::int64_t mine = flat ? e : shard_of(s, e, rows, ranks);
    const bool persists = s.engine == Engine::kZero && s.stage == 3 && static_cast<double>(e) <= s.zero.persistence;
    if (persists) u.persistent += e;
    rest_shard += each * (flat ? static_cast<double>(e) / static_cast<double>(ranks) : static_cast<double>(mine));
    if (role.quantized) u.quantized += e;
    if (role.trainable) {
      u.trainable += e;
      u.largest = std::max(u.largest, e);
      const std::int64_t kept = s.stage >= 1 ? (flat ? divide_up(e, ranks) : mine) : e;
      u.trained_shard += kept;
      const double copy = saved_copy ? s.parameter_bytes / s.adapters.bytes : 1;   // state formats follow the weights'; the setup's is the adapters'
      u.trained_tensors.push_back(static_cast<std::int64_t>(std::llround(static_cast<double>(kept) * copy)));
      u.whole_tensors.push_back(static_cast<std::int64_t>(std::llround(static_cast<double>(e) * copy)));
      const TrainedTensor t{p.shape, u.trained_tensors.back(), e > 0 ? static_cast<double>(u.trained_tensors.back()) / static_cast<double>(e) : 1, p.kind == Kind::kEmbedding, in_body && p.kind == Kind::kMatrix};
      add_states(s, t, u.state_tensors);
      u.update_temporary = std::max(u.update_temporary, update_temporary(s, t));
      if (saved_copy) {
        rest += each * static_cast<double>(e);
        rest_shard += each * (flat ? static_cast<double>(e) / static_cast<double>(ranks) : static_cast<double>(mine));
      }
    }
  }
  if (s.adapters.any) {
    const auto& targets = method.targets;
    const bool all = std::find(targets.begin(), targets.end(), "all-linear") != targets.end();
    for (std::size_t k = 0; k < block.ops.size(); ++k) {
      const auto& op = block.ops[k];
      if (op.kind != model::OpKind::kLinear) continue;
      const bool head_op = !in_body;
      std::int64_t out = op.out_features;
      const bool direct = all ? !head_op : names_module(targets, op.module, op.module);
      if (!direct) {
        if (op.fused_targets.empty() || all) continue;
        bool any = false;
        for (const auto& t : op.fused_targets) any = any || std::find(targets.begin(), targets.end(), t) != targets.end();
        if (!any) continue;
      }
      const bool reads = s.adapters.ia3 && names_module(method.feedforward, op.module, op.module);
      std::int64_t n = s.adapters.ia3 ? (reads ? op.in_features : out) : s.adapters.rank * (op.in_features + out) + (s.adapters.dora ? out : 0);
      if (s.tp > 1) n = divide_up(n, s.tp);
      u.adapter[k] = n;
      u.adapter_out[k] = out;
      u.adapters += n;
      u.whole_trainable += n;
      u.trained_tensors.push_back(s.stage >= 1 ? divide_up(n, s.shard) : n);
      const TrainedTensor t{{}, u.trained_tensors.back()};
      add_states(s, t, u.state_tensors);
      u.update_temporary = std::max(u.update_temporary, update_temporary(s, t));
      u.trained_shard += u.trained_tensors.back();
      rest += static_cast<double>(n) * s.adapters.bytes;
      gather += static_cast<double>(n) * s.adapters.bytes;
      rest_shard += static_cast<double>(divide_up(n, s.shard)) * s.adapters.bytes;
      u.largest = std::max(u.largest, n);
    }
  }
  u.trained = u.trainable + u.adapters;
  u.rest_bytes = static_cast<std::int64_t>(std::ceil(rest));
  u.rest_shard_bytes = static_cast<std::int64_t>(std::ceil(rest_shard));
  u.gather_bytes = static_cast<std::int64_t>(std::ceil(gather));
  return u;
}

}  // namespace shardfit::memory
