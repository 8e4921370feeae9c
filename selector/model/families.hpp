// The families of models: which config.json each takes and the function (one short file in families/) that builds it.
#pragma once
#include <string_view>
#include <vector>

#include "selector/model/config.hpp"

namespace shardfit::model {

struct Family {
  std::string_view name;
  Model (*build)(const Config& config);
  std::vector<std::string_view> model_types;    // values of "model_type"
  std::vector<std::string_view> architectures;  // beginnings of "architectures" entries, for files without a model_type
};

const std::vector<Family>& families();

Model build_baichuan(const Config&);
Model build_bert(const Config&);
Model build_bloom(const Config&);
Model build_chatglm(const Config&);
Model build_dbrx(const Config&);
Model build_deepseek(const Config&);
Model build_dinov2(const Config&);
Model build_falcon(const Config&);
Model build_gemma(const Config&);
Model build_gemma2(const Config&);
Model build_gemma3(const Config&);
Model build_gemma4(const Config&);
Model build_glm(const Config&);
Model build_gpt2(const Config&);
Model build_gpt_bigcode(const Config&);
Model build_gpt_neo(const Config&);
Model build_gpt_neox(const Config&);
Model build_gpt_oss(const Config&);
Model build_gptj(const Config&);
Model build_llama(const Config&);
Model build_llama4(const Config&);
Model build_mimo(const Config&);
Model build_minicpm3(const Config&);
Model build_mistral(const Config&);
Model build_mixtral(const Config&);
Model build_mpt(const Config&);
Model build_nemotron(const Config&);
Model build_nemotron_h(const Config&);
Model build_olmo(const Config&);
Model build_olmo2(const Config&);
Model build_opt(const Config&);
Model build_phi(const Config&);
Model build_phi3(const Config&);
Model build_phimoe(const Config&);
Model build_qwen(const Config&);
Model build_qwen2(const Config&);
Model build_qwen2_moe(const Config&);
Model build_qwen3(const Config&);
Model build_qwen3_moe(const Config&);
Model build_roberta(const Config&);
Model build_stablelm(const Config&);
Model build_starcoder2(const Config&);
Model build_t5(const Config&);
Model build_vit(const Config&);

}  // namespace shardfit::model
