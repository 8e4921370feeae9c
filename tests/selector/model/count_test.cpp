// Parameter counts against tests/truth/configs/MANIFEST.csv (an independent count, 14 of them published verbatim) and against integers
// derived from published dimensions.
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <sstream>

#include "regions/base/error.hpp"
#include "selector/model/model.hpp"

namespace shardfit::model {
namespace {

const std::string kTruth = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth/";

std::int64_t total(const std::string& text) { return parse_model(text, "config.json").parameters(); }

TEST(Count, EqualsEveryExactRowOfTheManifest) {
  std::ifstream manifest(kTruth + "configs/MANIFEST.csv");
  std::string line;
  std::getline(manifest, line);
  int exact = 0, rows = 0;
  while (std::getline(manifest, line)) {
    std::stringstream fields(line);
    std::string file, source, type, count, status;
    std::getline(fields, file, ',');
    std::getline(fields, source, ',');
    std::getline(fields, type, ',');
    std::getline(fields, count, ',');
    std::getline(fields, status, ',');
    ++rows;
    const Model m = load_model(kTruth + "configs/" + file);
    EXPECT_GT(m.parameters(), 0) << file;
    if (count.empty()) continue;
    ++exact;
    EXPECT_EQ(m.parameters(), std::stoll(count)) << file;
  }
  EXPECT_EQ(rows, 83);
  EXPECT_EQ(exact, 78);
}

// Read in the wild, not counted by the manifest: MiMo with its prediction layer (the sum of its published safetensors), Llama 4 Scout's
// text model, the 4.07 B of MiniCPM3 and the 56 B of Nemotron-H; DINOv2-giant and BERT-large for pre-training as published.
TEST(Count, EqualsFurtherPublishedSums) {
  const auto count = [](const char* file) { return load_model(kTruth + file).parameters(); };
  EXPECT_EQ(count("configs/XiaomiMiMo__MiMo-7B-Base.json"), 7833409536);
  EXPECT_EQ(count("configs/openbmb__MiniCPM3-4B.json") / 10000000, 407);
  EXPECT_EQ(count("configs/nvidia__Nemotron-H-56B-Base-8K.json") / 1000000000, 56);
  EXPECT_EQ(count("models/megatron-bert-large.json"), 336226108);
  // DINOv2-giant 1,136,480,768 at 518 pixels: 1370 - 257 positions fewer at 224, a classifier of 45 labels more
  EXPECT_EQ(count("models/dinov2-giant-224.json"), 1136480768 - (1370 - 257) * 1536 + 45 * 3072 + 45);
  EXPECT_EQ(count("models/gpt2-1.5b-16heads.json"), 1557611200);
}

TEST(Count, EveryModelOfTheMeasurementsIsBuilt) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kTruth + "models")) {
    EXPECT_GT(load_model(entry.path().string()).parameters(), 0) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 80);
}

TEST(Count, KnownIntegersWithoutAFile) {
  EXPECT_EQ(total(R"({"model_type":"gemma","hidden_size":2048,"intermediate_size":16384,"num_hidden_layers":18,"num_attention_heads":8,
    "num_key_value_heads":1,"head_dim":256,"vocab_size":256000})"), 2506172416) << "Gemma 2B";
  EXPECT_EQ(total(R"({"model_type":"opt","hidden_size":768,"ffn_dim":3072,"num_hidden_layers":12,"num_attention_heads":12,"vocab_size":50272,
    "max_position_embeddings":2048,"word_embed_proj_dim":768})"), 125239296) << "OPT-125m";
  EXPECT_EQ(total(R"({"model_type":"bloom","n_embed":1024,"n_layer":24,"num_attention_heads":16,"vocab_size":250880})"), 559214592) << "BLOOM-560m";
  EXPECT_EQ(total(R"({"architectures":["GPTNeoXForCausalLM"],"hidden_size":768,"intermediate_size":3072,"num_hidden_layers":12,
    "num_attention_heads":12,"vocab_size":50304})"), 162322944) << "Pythia-160m";
  EXPECT_EQ(total(R"({"model_type":"gpt_neox","hidden_size":6144,"intermediate_size":24576,"num_hidden_layers":44,"num_attention_heads":64,
    "vocab_size":50432})"), 20554567680) << "GPT-NeoX-20B";
  EXPECT_EQ(total(R"({"model_type":"t5","d_model":1024,"d_kv":64,"d_ff":4096,"num_layers":24,"num_heads":16,"vocab_size":32128})"), 737668096) << "T5-large";
  EXPECT_EQ(total(R"({"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,"multi_query":true,
    "parallel_attn":true,"vocab_size":65024})"), 6921720704) << "Falcon-7B";
}

// Published totals of further members of the families (model cards, safetensors metadata on the Hugging Face hub).
TEST(Count, KnownIntegersOfFurtherMembers) {
  EXPECT_EQ(total(R"({"model_type":"gemma2","hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,"num_attention_heads":8,
    "num_key_value_heads":4,"head_dim":256,"vocab_size":256000,"sliding_window":4096})"), 2614341888) << "Gemma 2 2B";
  EXPECT_EQ(total(R"({"model_type":"gemma3_text","hidden_size":1152,"intermediate_size":6912,"num_hidden_layers":26,"num_attention_heads":4,
    "num_key_value_heads":1,"head_dim":256,"vocab_size":262144,"sliding_window":512})"), 999885952) << "Gemma 3 1B";
  EXPECT_EQ(total(R"({"model_type":"opt","hidden_size":1024,"ffn_dim":4096,"num_hidden_layers":24,"num_attention_heads":16,"vocab_size":50272,
    "max_position_embeddings":2048,"word_embed_proj_dim":512,"do_layer_norm_before":false})"), 331196416) << "OPT-350m";
  EXPECT_EQ(total(R"({"model_type":"phi3","hidden_size":3072,"intermediate_size":8192,"num_hidden_layers":32,"num_attention_heads":32,
    "vocab_size":32064})"), 3821079552) << "Phi-3-mini";
  EXPECT_EQ(total(R"({"model_type":"llama","hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30,"num_attention_heads":9,
    "num_key_value_heads":3,"vocab_size":49152,"tie_word_embeddings":true})"), 134515008) << "SmolLM2-135M";
  EXPECT_EQ(total(R"({"model_type":"stablelm","hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":24,"num_attention_heads":32,
    "vocab_size":100352,"use_qkv_bias":true})"), 1644515328) << "StableLM 2 1.6B";
  EXPECT_EQ(total(R"({"model_type":"qwen2_moe","hidden_size":2048,"intermediate_size":5632,"moe_intermediate_size":1408,
    "shared_expert_intermediate_size":5632,"num_experts":60,"num_experts_per_tok":4,"num_hidden_layers":24,"num_attention_heads":16,
    "num_key_value_heads":16,"vocab_size":151936})"), 14315784192) << "Qwen1.5-MoE-A2.7B";
  EXPECT_EQ(total(R"({"model_type":"olmo2","hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,"num_attention_heads":32,
    "vocab_size":100352})"), 2 * 100352LL * 4096 + 32 * (4 * 4096LL * 4096 + 3 * 4096LL * 11008 + 4 * 4096) + 4096) << "OLMo 2 7B";
  EXPECT_EQ(total(R"({"model_type":"olmo","hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,"num_attention_heads":16,
    "vocab_size":50304,"tie_word_embeddings":true})"), 1176764416) << "OLMo 1B";
  EXPECT_EQ(total(R"({"model_type":"gpt_neo","hidden_size":768,"num_layers":12,"num_heads":12,"vocab_size":50257,"max_position_embeddings":2048})"),
            125198592) << "GPT-Neo 125M";
  EXPECT_EQ(total(R"({"model_type":"glm4","hidden_size":4096,"intermediate_size":13696,"num_hidden_layers":40,"num_attention_heads":32,
    "num_key_value_heads":2,"head_dim":128,"vocab_size":151552,"attention_bias":true,"tie_word_embeddings":false})"), 9400279040) << "GLM-4-9B-0414";
  EXPECT_EQ(total(R"({"model_type":"starcoder2","hidden_size":3072,"intermediate_size":12288,"num_hidden_layers":30,"num_attention_heads":24,
    "num_key_value_heads":2,"vocab_size":49152})"), 3030371328) << "StarCoder2 3B";
}

}  // namespace
}  // namespace shardfit::model
