#include "selector/model/model.hpp"

#include <fmt/format.h>
#include <functional>

namespace shardfit::model {
namespace {

std::string numbered(const std::string& prefix, std::int64_t number) {
  const auto brace = prefix.find("{}");
  return brace == std::string::npos ? prefix : prefix.substr(0, brace) + std::to_string(number) + prefix.substr(brace + 2);
}

void append(std::vector<NamedParameter>& all, const Block& block, const std::string& prefix, int unit) {
  for (const Parameter& p : block.parameters)
    all.push_back({prefix.empty() ? p.name : prefix + "." + p.name, p.shape, p.kind, unit});
}

}  // namespace

std::int64_t Model::parameters() const {
  std::vector<std::int64_t> elements;
  elements.reserve(blocks.size());
  for (const Block& b : blocks) elements.push_back(b.elements());
  std::int64_t total = embedding.elements() + head.elements();
  for (const auto* stack : {&encoder, &body})
    for (const Run& run : *stack) total += elements[static_cast<std::size_t>(run.block)] * run.count;
  return total;
}

std::int64_t Model::block_count() const {
  std::int64_t n = 0;
  for (const auto* stack : {&encoder, &body})
    for (const Run& run : *stack) n += run.count;
  return n;
}

std::vector<NamedParameter> all_parameters(const Model& model) {
  std::vector<NamedParameter> all;
  append(all, model.embedding, model.embedding.prefix, -1);
  int unit = 0;
  for (const auto* stack : {&model.encoder, &model.body}) {
    std::int64_t number = 0;
    for (const Run& run : *stack)
      for (std::int64_t i = 0; i < run.count; ++i) {
        const Block& block = model.blocks[static_cast<std::size_t>(run.block)];
        append(all, block, numbered(block.prefix, number++), unit++);
      }
  }
  append(all, model.head, model.head.prefix, unit);
  return all;
}

}  // namespace shardfit::model
