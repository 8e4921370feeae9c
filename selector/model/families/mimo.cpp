// MiMo (modeling_mimo.py of its repository): Qwen 2 with layers that predict further tokens. Those hold parameters, but the
// training forward does not run them.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

Model build_mimo(const Config& c) {
  Model m = build_qwen2(c);
  for (Block& block : m.blocks) block.class_name = "MiMoDecoderLayer";
  const std::int64_t extra = c.size_or({"num_nextn_predict_layers"}, 0, 0, 64);
  for (std::int64_t i = 0; i < extra; ++i) {
    const std::string prefix = "model.mtp_layers." + std::to_string(i) + ".";
    for (const Parameter& p : m.blocks.front().parameters)
      m.head.parameters.push_back({prefix + p.name, prefix + p.module, p.shape, p.kind});
    for (const char* name : {"token_layernorm", "hidden_layernorm", "final_layernorm"})
      m.head.parameters.push_back({prefix + name + ".weight", prefix + name, {m.hidden}, Parameter::Kind::kNorm});
    m.head.parameters.push_back({prefix + "input_proj.weight", prefix + "input_proj", {m.hidden, 2 * m.hidden}, Parameter::Kind::kMatrix});
  }
  if (extra > 0) m.notes.push_back("the layers that predict further tokens are counted but not run");
  return m;
}

}  // namespace shardfit::model
