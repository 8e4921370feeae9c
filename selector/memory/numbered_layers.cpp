// "model.layers.30" among the parts to train: layers that are built alike but trained differently become kinds of their own.
#include <algorithm>
#include <map>

#include "selector/memory/setup.hpp"

namespace shardfit::memory {
namespace {

bool has_number(const std::string& pattern) {
  for (std::size_t a = 0; a <= pattern.size();) {
    const auto dot = std::min(pattern.find('.', a), pattern.size());
    if (dot > a && std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(a), pattern.begin() + static_cast<std::ptrdiff_t>(dot), [](char c) { return c >= '0' && c <= '9'; })) return true;
    a = dot + 1;
  }
  return false;
}

}  // namespace

std::optional<model::Model> numbered_layers(const job::Job& job, const model::Model& model) {
  const auto& trainable = job.method.trainable;
  if (job.method.kind != job::MethodKind::kPartial || std::none_of(trainable.begin(), trainable.end(), has_number)) return {};
  model::Model m = model;
  std::map<std::pair<int, std::vector<char>>, int> kinds;   // block, which of its parameters are trained -> its copy
  for (auto* stack : {&m.encoder, &m.body}) {
    std::vector<model::Run> runs;
    std::int64_t number = 0;
    for (const auto& run : *stack)
      for (std::int64_t i = 0; i < run.count; ++i, ++number) {
        std::string prefix = m.blocks[static_cast<std::size_t>(run.block)].prefix;
        if (const auto brace = prefix.find("{}"); brace != std::string::npos) prefix.replace(brace, 2, std::to_string(number));
        std::vector<char> trained;
        for (const auto& p : m.blocks[static_cast<std::size_t>(run.block)].parameters) trained.push_back(names_module(trainable, p.module, prefix + "." + p.name) ? 1 : 0);
        const auto [at, fresh] = kinds.try_emplace({run.block, std::move(trained)}, static_cast<int>(m.blocks.size()));
        if (fresh) {
          m.blocks.push_back(m.blocks[static_cast<std::size_t>(run.block)]);
          m.blocks.back().prefix = prefix;
        }
        if (!runs.empty() && runs.back().block == at->second) ++runs.back().count;
        else runs.push_back({at->second, 1});
      }
    *stack = std::move(runs);
  }
  return m;
}

}  // namespace shardfit::memory
