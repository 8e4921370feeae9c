#include "selector/memory/prediction_block.hpp"

namespace shardfit::memory {

model::Block prediction_block(const model::Block& block, std::int64_t hidden) {
  using model::OpKind;
  model::Block b = block;
  const auto tensor = [&b](const char* name, std::int64_t width) {
    b.tensors.push_back({name, width, model::Space::kTokens});
    return static_cast<model::TensorId>(b.tensors.size()) - 1;
  };
  const auto parameter = [&b](const char* module, std::vector<std::int64_t> shape, model::Parameter::Kind kind) {
    b.parameters.push_back({std::string(module) + ".weight", module, std::move(shape), kind});
    return static_cast<int>(b.parameters.size()) - 1;
  };
  const model::TensorId before = tensor("hidden states", hidden), next = tensor("next token's embedding", hidden);
  std::vector<model::Op> ops;
  const auto norm = [&](const char* module, model::TensorId x) {
    model::Op op;
    op.kind = OpKind::kNorm;
    op.module = module;
    op.rms = true;
    op.group = hidden;
    op.in = {x};
    op.outs = {tensor(module, hidden)};
    op.params = {parameter(module, {hidden}, model::Parameter::Kind::kNorm)};
    ops.push_back(op);
    return op.outs[0];
  };
  const model::TensorId e = norm("enorm", next), h = norm("hnorm", before);
  model::Op concat;
  concat.kind = OpKind::kConcat;
  concat.in = {e, h};
  concat.outs = {tensor("concatenated", 2 * hidden)};
  ops.push_back(concat);
  model::Op project;
  project.kind = OpKind::kLinear;
  project.module = "eh_proj";
  project.in = concat.outs;
  project.in_features = 2 * hidden;
  project.out_features = hidden;
  project.params = {parameter("eh_proj", {hidden, 2 * hidden}, model::Parameter::Kind::kMatrix)};
  project.outs = {block.input};          // the block reads it as its residual stream
  ops.push_back(project);
  parameter("final_layernorm", {hidden}, model::Parameter::Kind::kNorm);   // before the output projection: with the head's operators
  b.input = before;
  ops.insert(ops.end(), b.ops.begin(), b.ops.end());
  b.ops = std::move(ops);
  b.prefix = "mtp.layers.{}";
  return b;
}

}  // namespace shardfit::memory
