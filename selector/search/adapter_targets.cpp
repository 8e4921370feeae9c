#include "selector/search/adapter_targets.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "selector/job/job.hpp"
#include "selector/model/model.hpp"

namespace shardfit::search {

namespace {

using Names = std::vector<std::string>;

// The last component of each linear module of the model, or with `fused` the names that users know for parts of a fused
// one.
std::set<std::string> linear_names(const model::Model& model, bool fused) {
  std::set<std::string> names;
  const auto add = [&](const model::Block& block) {
    for (const auto& op : block.ops) {
      if (op.kind != model::OpKind::kLinear || op.module.empty()) continue;
      if (fused) names.insert(op.fused_targets.begin(), op.fused_targets.end());
      else names.insert(op.module.substr(op.module.rfind('.') + 1));
    }
  };
  for (const auto& block : model.blocks) add(block);
  add(model.head);
  return names;
}

bool all_in(const Names& wanted, const std::set<std::string>& names) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& w) { return names.contains(w); });
}

Names usual_targets(bool ia3, const std::set<std::string>& names) {
  static const std::vector<Names> attention = {
      {"q_proj", "v_proj"}, {"query", "value"}, {"q", "v"}, {"query_key_value"},
      {"c_attn"},           {"W_pack"},         {"Wqkv"},   {"qkv_proj"}};
  static const std::vector<Names> scaled = {
      {"k_proj", "v_proj", "down_proj"},    {"k_proj", "v_proj", "fc2"}, {"key", "value", "dense"}, {"k", "v", "wo"},
      {"query_key_value", "dense_4h_to_h"}, {"c_attn", "c_proj"}};
  for (const auto& candidate : ia3 ? scaled : attention)
    if (all_in(candidate, names)) return candidate;
  return {};
}

// A target is a module's name, or its last components: "q_proj", "self_attn.q_proj", "model.layers.*.self_attn.q_proj".
std::string last_component(const std::string& target) { return target.substr(target.rfind('.') + 1); }

}  // namespace

std::optional<std::string> settle_targets(job::Job& job, const model::Model& model, const std::string& where) {
  auto& m = job.method;
  const bool ia3 = m.kind == job::MethodKind::kIa3;
  if (!ia3 && m.kind != job::MethodKind::kLora && m.kind != job::MethodKind::kQlora) return std::nullopt;
  const auto names = linear_names(model, false), parts = linear_names(model, true);
  if (m.targets.empty() && m.feedforward.empty()) {
    m.targets = usual_targets(ia3, names);
    if (m.targets.empty())
      throw Error("missing_key", where + "/method/targets",
                  "is missing, and the library has no default for family " + model.family,
                  "name some of " + join(Names(names.begin(), names.end()), ", ") + ", or \"all-linear\"");
    if (ia3) m.feedforward = {m.targets.back()};
    return "method.targets=" + join(m.targets, ",") + " (PEFT's default for this family)";
  }
  const auto known = [&](const std::string& target) {
    const auto last = last_component(target);
    return target == "all-linear" || last == "*" || names.contains(last) || parts.contains(last) ||
           ("." + model.embedding_parameter).find("." + last + ".") != std::string::npos;
  };
  if (std::any_of(m.targets.begin(), m.targets.end(), known) ||
      std::any_of(m.feedforward.begin(), m.feedforward.end(), known))
    return std::nullopt;
  const auto& first = m.targets.empty() ? m.feedforward.front() : m.targets.front();
  throw Error("unknown_module", where + (m.targets.empty() ? "/method/feedforward/0" : "/method/targets/0"),
              "\"" + first.substr(0, 80) + "\" names no linear module of this model",
              "name some of " + join(Names(names.begin(), names.end()), ", ") + ", or \"all-linear\"");
}

}  // namespace shardfit::search
