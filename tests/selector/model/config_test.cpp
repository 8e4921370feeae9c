// What a config.json may look like: spellings old and new, missing types, wrong values.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "selector/model/model.hpp"

namespace shardfit::model {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json llama() {
  return {{"model_type", "llama"}, {"hidden_size", 64},         {"intermediate_size", 128},   {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"vocab_size", 100},     {"num_key_value_heads", 2}, {"tie_word_embeddings", false}};
}
Model build(const json& config, const std::string& as = "") { return parse_model(config.dump(), "config.json", as); }
std::string refusal(const json& config, const std::string& as = "") {
  try {
    build(config, as);
  } catch (const Error& e) {
    EXPECT_EQ(e.file, "config.json");
    return e.code + " " + e.what();
  }
  return "accepted";
}

TEST(Config, OldAndNewSpellingsMeanTheSame) {
  json old = llama(), young = llama();
  old["torch_dtype"] = "bfloat16";
  old["rope_theta"] = 500000.0;
  old["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  young["dtype"] = "bfloat16";
  young["rope_parameters"] = old["rope_scaling"];
  young["rope_parameters"]["rope_theta"] = 500000.0;
  const Model a = build(old), b = build(young);
  EXPECT_EQ(a.dtype, "bfloat16");
  EXPECT_EQ(b.dtype, "bfloat16");
  EXPECT_EQ(a.rope_theta, 500000);
  EXPECT_EQ(b.rope_theta, 500000);
  EXPECT_EQ(a.facts, b.facts);
  EXPECT_EQ(a.facts.at("rope_type"), 5);
  EXPECT_EQ(a.facts.at("rope_factor"), 8);
}

TEST(Config, AMissingTypeIsDecidedByArchitectureOrKeys) {
  json c = llama();
  c.erase("model_type");
  c["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_EQ(build(c).family, "qwen2");
  c.erase("architectures");
  c["rms_norm_eps"] = 1e-6;
  EXPECT_EQ(build(c).family, "llama");
  EXPECT_EQ(build({{"hidden_size", 64}, {"intermediate_size", 128}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"vocab_size", 100}, {"type_vocab_size", 1}}).family,
            "roberta");
}

TEST(Config, AnUnknownTypeListsTheFamiliesAndNamesTheWayOut) {
  json c = llama();
  c["model_type"] = "galactica9";
  EXPECT_THAT(refusal(c), AllOf(HasSubstr("unknown_model_type"), HasSubstr("galactica9"), HasSubstr("qwen3_moe"), HasSubstr("--as FAMILY")));
  EXPECT_EQ(build(c, "llama").family, "llama");
  EXPECT_EQ(build(c, "deepseek_v3").family, "deepseek");
  EXPECT_THAT(refusal(llama(), "lama"), AllOf(HasSubstr("unknown_model_type"), HasSubstr("did you mean \"llama\"")));
}

TEST(Config, EveryKnownFamilyHasANameToChooseItBy) {
  for (const auto& family : known_families()) EXPECT_THAT(refusal({{"model_type", family}}), HasSubstr("missing_key")) << family;
}

TEST(Config, WrongValuesNameTheirKey) {
  const auto with = [](const char* key, json value) {
    json c = llama();
    c[key] = std::move(value);
    return refusal(c);
  };
  EXPECT_THAT(with("hidden_size", -4096), AllOf(HasSubstr("out_of_range"), HasSubstr("/hidden_size"), HasSubstr("-4096")));
  EXPECT_THAT(with("hidden_size", 1e18), AllOf(HasSubstr("out_of_range"), HasSubstr("/hidden_size")));
  EXPECT_THAT(with("num_hidden_layers", 0), HasSubstr("/num_hidden_layers"));
  EXPECT_THAT(with("vocab_size", 1e300), HasSubstr("/vocab_size"));
  EXPECT_THAT(with("vocab_size", "many"), AllOf(HasSubstr("wrong_type"), HasSubstr("/vocab_size")));
  EXPECT_THAT(with("num_attention_heads", 3), AllOf(HasSubstr("/num_attention_heads"), HasSubstr("do not divide")));
  EXPECT_THAT(with("num_key_value_heads", 3), AllOf(HasSubstr("/num_key_value_heads"), HasSubstr("do not divide")));
  EXPECT_THAT(with("num_key_value_heads", 8), HasSubstr("/num_key_value_heads"));
  EXPECT_THAT(with("intermediate_size", nullptr), AllOf(HasSubstr("missing_key"), HasSubstr("intermediate_size")));
  EXPECT_THAT(with("hidden_act", "sine"), AllOf(HasSubstr("unknown_word"), HasSubstr("/hidden_act"), HasSubstr("silu")));
  EXPECT_THAT(with("rms_norm_eps", -1), HasSubstr("/rms_norm_eps"));
  EXPECT_THAT(with("attention_dropout", 1.5), HasSubstr("/attention_dropout"));
  EXPECT_THAT(with("rope_scaling", "x"), HasSubstr("/rope_scaling"));
  EXPECT_THAT(with("hidden_size", 2.5), HasSubstr("whole number"));
}

TEST(Config, SizesWhoseProductIsAbsurdAreRefusedWithoutOverflow) {
  json c = llama();
  c["hidden_size"] = c["intermediate_size"] = 1 << 24;
  c["num_hidden_layers"] = 8192;
  EXPECT_THAT(refusal(c), HasSubstr("out_of_range"));
  c = {{"model_type", "mixtral"}, {"hidden_size", 1 << 24}, {"intermediate_size", 1 << 24}, {"num_hidden_layers", 8192}, {"num_attention_heads", 1}, {"vocab_size", 1 << 28},
       {"num_local_experts", 4096}};
  EXPECT_THAT(refusal(c), HasSubstr("out_of_range"));
}

TEST(Config, FilesOfPythonWithInfinityAreRead) {
  json c = llama();
  std::string text = c.dump();
  text.insert(1, "\"time_step_limit\": [0.0, Infinity, -Infinity, NaN], \"note\": \"Infinity \\\" NaN\",");
  EXPECT_EQ(parse_model(text, "config.json").parameters(), build(c).parameters());
}

TEST(Config, WhatIsNoObjectIsOneError) {
  EXPECT_THAT(refusal(json::array()), HasSubstr("wrong_type"));
  EXPECT_THROW(parse_model("", "config.json"), Error);
  EXPECT_THROW(parse_model("{\"hidden_size\":", "config.json"), Error);
  EXPECT_THROW(load_model("/nonexistent/config.json"), Error);
}

TEST(Config, NestedTextConfigIsFoundAndTheRestIsSaid) {
  json text = llama();
  text["model_type"] = "gemma3_text";
  text["head_dim"] = 16;
  json c = {{"model_type", "gemma3"}, {"architectures", {"Gemma3ForConditionalGeneration"}}, {"text_config", text}, {"vision_config", {{"hidden_size", 32}}}};
  const Model m = build(c);
  EXPECT_EQ(m.family, "gemma3");
  EXPECT_EQ(m.hidden, 64);
  ASSERT_EQ(m.notes.size(), 1u);
  EXPECT_THAT(m.notes.front(), HasSubstr("vision_config"));
}

TEST(Config, BertTakesTheHeadThatTheFileNames) {
  json c = {{"model_type", "bert"}, {"hidden_size", 64}, {"intermediate_size", 128}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"vocab_size", 100}};
  const auto count = [&](const char* architecture) {
    c["architectures"] = {std::string("BertFor") + architecture};
    return build(c).parameters();
  };
  const auto trunk = count("QuestionAnswering") - (2 * 64 + 2);
  EXPECT_EQ(count("SequenceClassification"), trunk + (64 * 64 + 64) + (2 * 64 + 2));
  EXPECT_EQ(count("MaskedLM"), trunk + (64 * 64 + 64) + 2 * 64 + 100);
  EXPECT_EQ(count("PreTraining"), count("MaskedLM") + (64 * 64 + 64) + (2 * 64 + 2));
  c["num_labels"] = 7;
  EXPECT_EQ(count("SequenceClassification"), trunk + (64 * 64 + 64) + (7 * 64 + 7));
}

TEST(Config, AFolderStandsForItsFile) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "shardfit_model_folder";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << llama().dump();
  EXPECT_EQ(load_model(folder.string()).parameters(), build(llama()).parameters());
}

}  // namespace
}  // namespace shardfit::model
