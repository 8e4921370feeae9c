#include "selector/memory/gather_parts.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

#include "regions/base/error.hpp"

namespace shardfit::memory {
namespace {

using model::Block;
using model::Parameter;

bool ends_with(const std::string& s, std::string_view end) { return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0; }
bool holds(const std::string& s, std::string_view part) { return s.find(part) != std::string::npos; }
bool under(const std::string& module, const std::string& container) { return module == container || (module.size() > container.size() && module.compare(0, container.size(), container) == 0 && module[container.size()] == '.'); }

std::string last_name(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

std::string lower(std::string s) {
  for (char& c : s) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return s;
}

// Modules of a block that own parameters or contain such, outer before inner.
std::vector<std::string> modules_of(const Block& block) {
  std::vector<std::string> all;
  for (const auto& p : block.parameters)
    for (std::size_t dot = p.module.find('.');; dot = p.module.find('.', dot + 1)) {
      const auto path = p.module.substr(0, dot);
      if (!path.empty() && std::find(all.begin(), all.end(), path) == all.end()) all.push_back(path);
      if (dot == std::string::npos) break;
    }
  return all;
}

enum class Names : std::uint8_t { kBlock, kAttention, kMlp, kExperts, kNorm, kLinear, kEmbedding, kModule };

// What a class is by its name: libraries name theirs LlamaAttention, Qwen2MLP, MixtralSparseMoeBlock, GPT2Block, T5LayerNorm.
Names meaning(const Setup& s, const std::string& name) {
  for (const auto& b : s.model.blocks)
    if (b.class_name == name) return Names::kBlock;
  if (ends_with(name, "Embedding") || ends_with(name, "Embeddings")) return Names::kEmbedding;
  if (ends_with(name, "Linear") || ends_with(name, "Conv1D")) return Names::kLinear;
  if (ends_with(name, "Norm")) return Names::kNorm;
  if (ends_with(name, "Experts")) return Names::kExperts;
  if (ends_with(name, "MLP") || ends_with(name, "Mlp") || ends_with(name, "FeedForward") || ends_with(name, "MoE") || ends_with(name, "SparseMoeBlock") || ends_with(name, "FFN")) return Names::kMlp;
  if (ends_with(name, "Attention")) return Names::kAttention;
  if (holds(name, "Layer") || holds(name, "Block")) return Names::kBlock;
  return Names::kModule;
}

bool is_module(const Block& block, const std::string& path, Names names, const std::string& stated) {
  const bool container = std::any_of(block.parameters.begin(), block.parameters.end(), [&](const Parameter& p) { return p.module != path && under(p.module, path); });
  const auto owns = [&](auto... kinds) { return std::any_of(block.parameters.begin(), block.parameters.end(), [&](const Parameter& p) { return p.module == path && ((p.kind == kinds) || ...); }); };
  const std::string last = lower(last_name(path));
  switch (names) {
    case Names::kAttention: return container && (holds(last, "attn") || holds(last, "attention"));
    case Names::kMlp: return container && (last == "mlp" || last == "ffn" || last == "moe" || holds(last, "feed_forward") || holds(last, "sparse_moe") || last == "densereludense");
    case Names::kExperts: return last == "experts";
    case Names::kNorm: return owns(Parameter::Kind::kNorm);
    case Names::kLinear: return owns(Parameter::Kind::kMatrix);
    case Names::kModule: return path == stated || last_name(path) == stated;
    default: return false;
  }
}

void check_known(const Setup& s, const std::string& stated, Names names) {
  if (names == Names::kBlock || names == Names::kEmbedding) return;
  for (const auto& b : s.model.blocks)
    for (const auto& path : modules_of(b))
      if (is_module(b, path, names, stated)) return;
  std::string known;
  if (!s.model.blocks.empty()) {
    known = s.model.blocks.front().class_name;
    for (const auto& path : modules_of(s.model.blocks.front())) known += (known.empty() ? "" : ", ") + path;
  }
  throw Error("unknown_word", "/plan/schedule/unit", fmt::format("\"{}\" is neither a class nor a module of this model's blocks", stated), fmt::format("use \"block\", or a list of: {}", known));
}

// torch/distributed/fsdp/wrap.py, _recursive_wrap with size_based_auto_wrap_policy: a module whose children leave at least `least`
// elements unwrapped is wrapped. Returns the elements wrapped in or below `path`.
std::int64_t wrap_by_size(const Block& block, const std::string& path, std::int64_t least, std::vector<std::string>& wrapped) {
  std::int64_t all = 0, taken = 0;
  std::vector<std::string> children;
  for (const auto& p : block.parameters) {
    if (!path.empty() && !under(p.module, path)) continue;
    all += p.elements();
    if (p.module == path) continue;
    const std::size_t from = path.empty() ? 0 : path.size() + 1;
    const auto child = p.module.substr(0, p.module.find('.', from));
    if (std::find(children.begin(), children.end(), child) == children.end()) children.push_back(child);
  }
  if (all < least) return 0;
  for (const auto& c : children) taken += wrap_by_size(block, c, least, wrapped);
  if (all - taken < least) return taken;
  wrapped.push_back(path);
  return all;
}

std::int64_t elements_of_table(const Block& block, std::int64_t vocabulary) {
  for (const auto& p : block.parameters)
    if (p.shape.size() == 2 && p.shape[0] == vocabulary) return p.elements();
  return 0;
}

bool only_blocks(const Setup& s) {
  const auto& classes = s.plan.schedule.unit_classes;
  return std::all_of(classes.begin(), classes.end(), [&](const std::string& c) {
    const auto m = meaning(s, c);
    return m == Names::kBlock || m == Names::kEmbedding;
  });
}

bool names_any(const Setup& s, Names names) {
  const auto& classes = s.plan.schedule.unit_classes;
  return std::any_of(classes.begin(), classes.end(), [&](const std::string& c) { return meaning(s, c) == names; });
}

}  // namespace

bool has_gather_parts(const Setup& s) {
  const auto& schedule = s.plan.schedule;
  const bool by_size = schedule.unit_least_parameters.has_value();
  for (const auto& c : schedule.unit_classes) check_known(s, c, meaning(s, c));
  if (!by_size && only_blocks(s)) return false;
  if (s.stage == 0 && !s.flat_whole) return false;
  if (s.engine != Engine::kFsdp1 && s.engine != Engine::kFsdp2)
    throw Error("unsupported_combination", by_size ? "/plan/fsdp/min_num_params" : "/plan/schedule/unit", "only fsdp1 and fsdp2 wrap modules other than blocks", "use \"block\", or choose framework fsdp1 or fsdp2");
  // accelerate (utils/fsdp_utils.py, fsdp2_prepare_model) hands fully_shard every module that is large enough, the ModuleList of the
  // layers too, which fully_shard refuses ("does not support containers that do not implement forward")
  if (by_size && s.engine == Engine::kFsdp2 && *schedule.unit_least_parameters < job::kNoWrap)
    throw Error("unsupported_combination", "/plan/fsdp/min_num_params", "FSDP2 does not wrap by size: fully_shard refuses the list of layers, which is above any such limit", "use auto_wrap_policy TRANSFORMER_BASED_WRAP, or framework fsdp1");
  return true;
}

BlockParts gather_parts(const Setup& s, const Block& block) {
  std::vector<std::string> wrapped;    // "" = the block
  if (const auto least = s.plan.schedule.unit_least_parameters) {
    wrap_by_size(block, "", *least, wrapped);
  } else {
    for (const auto& stated : s.plan.schedule.unit_classes) {
      const auto names = meaning(s, stated);
      if (names == Names::kBlock) wrapped.emplace_back();
      for (const auto& path : modules_of(block))
        if (is_module(block, path, names, stated)) wrapped.push_back(path);
    }
  }
  BlockParts parts;
  parts.whole = std::find(wrapped.begin(), wrapped.end(), "") != wrapped.end();
  std::vector<std::string> inner;      // in the order in which the block's parameters name them
  std::vector<std::string> owner(block.parameters.size());
  for (std::size_t i = 0; i < block.parameters.size(); ++i)
    for (const auto& w : wrapped)
      if (!w.empty() && under(block.parameters[i].module, w) && w.size() > owner[i].size()) owner[i] = w;
  // in the order of the forward, that of the operators
  for (const auto& op : block.ops)
    for (const int p : op.params)
      if (const auto& w = owner[static_cast<std::size_t>(p)]; !w.empty() && std::find(inner.begin(), inner.end(), w) == inner.end()) inner.push_back(w);
  for (const auto& w : owner)
    if (!w.empty() && std::find(inner.begin(), inner.end(), w) == inner.end()) inner.push_back(w);
  parts.count = static_cast<int>(inner.size());
  for (const auto& w : owner) {
    if (w.empty()) parts.of.push_back(parts.whole ? parts.count : BlockParts::kRoot);
    else parts.of.push_back(static_cast<int>(std::find(inner.begin(), inner.end(), w) - inner.begin()));
  }
  return parts;
}

bool parts_split_root(const Setup& s) {
  if (s.model.tied_embeddings) return false;
  if (const auto least = s.plan.schedule.unit_least_parameters) return elements_of_table(s.model.embedding, s.model.vocabulary) >= *least && elements_of_table(s.model.head, s.model.vocabulary) >= *least;
  return names_any(s, Names::kEmbedding) || names_any(s, Names::kLinear);
}

// Wrapped linear layers take the output projection out of the root, not the table.
bool table_in_root(const Setup& s) { return !s.plan.schedule.unit_least_parameters && !names_any(s, Names::kEmbedding); }

Block part_of_block(const Block& block, const std::vector<int>& of, int part) {
  Block b;
  b.class_name = block.class_name;
  b.prefix = block.prefix;
  for (std::size_t i = 0; i < block.parameters.size(); ++i)
    if (of[i] == part) b.parameters.push_back(block.parameters[i]);
  // operators for what adapters hang on: those that read the part's parameters
  for (const auto& op : block.ops)
    if (!op.params.empty() && of[static_cast<std::size_t>(op.params.front())] == part) {
      b.ops.push_back(op);
      b.ops.back().params.clear();
    }
  return b;
}

}  // namespace shardfit::memory
