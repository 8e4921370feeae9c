#include "selector/model/families.hpp"

namespace shardfit::model {

const std::vector<Family>& families() {
  static const std::vector<Family> table{
      {"baichuan", build_baichuan, {}, {"Baichuan", "BaiChuan"}},
      {"bert", build_bert, {}, {"Bert"}},
      {"bloom", build_bloom, {}, {"Bloom"}},
      {"chatglm", build_chatglm, {}, {"ChatGLM"}},
      {"dbrx", build_dbrx, {}, {"Dbrx"}},
      {"deepseek", build_deepseek, {"deepseek_v2", "deepseek_v3", "kimi_k2"}, {"Deepseek", "DeepSeek"}},
      {"dinov2", build_dinov2, {}, {"Dinov2"}},
      {"falcon", build_falcon, {"RefinedWeb", "RefinedWebModel"}, {"Falcon", "RWFor"}},
      {"gemma", build_gemma, {}, {"GemmaFor"}},
      {"gemma2", build_gemma2, {}, {"Gemma2"}},
      {"gemma3", build_gemma3, {"gemma3_text"}, {"Gemma3For"}},
      {"gemma4", build_gemma4, {"gemma4_text"}, {"Gemma4"}},
      {"glm", build_glm, {"glm4"}, {"GlmFor", "Glm4For"}},
      {"gpt2", build_gpt2, {}, {"GPT2"}},
      {"gpt_bigcode", build_gpt_bigcode, {}, {"GPTBigCode"}},
      {"gpt_neo", build_gpt_neo, {}, {"GPTNeoFor"}},
      {"gpt_neox", build_gpt_neox, {}, {"GPTNeoX"}},
      {"gpt_oss", build_gpt_oss, {}, {"GptOss"}},
      {"gptj", build_gptj, {}, {"GPTJ"}},
      {"llama", build_llama, {"internlm"}, {"LlamaFor", "LLaMAFor", "InternLMFor"}},
      {"llama4", build_llama4, {"llama4_text"}, {"Llama4"}},
      {"mimo", build_mimo, {}, {"MiMoFor"}},
      {"minicpm3", build_minicpm3, {}, {"MiniCPM3"}},
      {"mistral", build_mistral, {"ministral"}, {"MistralFor", "MinistralFor"}},
      {"mixtral", build_mixtral, {}, {"Mixtral"}},
      {"mpt", build_mpt, {}, {"Mpt", "MPT"}},
      {"nemotron", build_nemotron, {}, {"NemotronFor"}},
      {"nemotron_h", build_nemotron_h, {}, {"NemotronH"}},
      {"olmo", build_olmo, {}, {"OlmoFor"}},
      {"olmo2", build_olmo2, {"olmo3"}, {"Olmo2", "Olmo3"}},
      {"opt", build_opt, {}, {"OPT"}},
      {"phi", build_phi, {}, {"PhiFor"}},
      {"phi3", build_phi3, {}, {"Phi3For"}},
      {"phimoe", build_phimoe, {}, {"PhiMoE", "Phimoe", "PhimoE"}},
      {"qwen", build_qwen, {}, {"QWen"}},
      {"qwen2", build_qwen2, {}, {"Qwen2For"}},
      {"qwen2_moe", build_qwen2_moe, {}, {"Qwen2Moe"}},
      {"qwen3", build_qwen3, {}, {"Qwen3For"}},
      {"qwen3_moe", build_qwen3_moe, {}, {"Qwen3Moe"}},
      {"roberta", build_roberta, {"xlm-roberta", "camembert"}, {"Roberta", "XLMRoberta", "Camembert"}},
      {"stablelm", build_stablelm, {}, {"StableLm"}},
      {"starcoder2", build_starcoder2, {}, {"Starcoder2"}},
      {"t5", build_t5, {}, {"T5For", "T5Model", "T5Encoder"}},
      {"vit", build_vit, {}, {"ViT"}},
  };
  return table;
}

}  // namespace shardfit::model
