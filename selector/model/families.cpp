#include "selector/model/families.hpp"

namespace shardfit::model {

const std::vector<Family>& families() {
  static const std::vector<Family> table{
      {"gpt2", build_gpt2, {}, {"GPT2"}},
      {"llama", build_llama, {}, {"LlamaFor", "LLaMAFor"}},
      {"mistral", build_mistral, {"ministral"}, {"MistralFor", "MinistralFor"}},
      {"qwen2", build_qwen2, {}, {"Qwen2For"}},
      {"qwen3", build_qwen3, {}, {"Qwen3For"}},
  };
  return table;
}

}  // namespace shardfit::model
