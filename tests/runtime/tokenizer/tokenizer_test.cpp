// Against golden values of the Python library `tokenizers` (tests/runtime/make_tokenizer_goldens.py).
#include "runtime/tokenizer/tokenizer.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::tokenizer {
namespace {

const std::filesystem::path kData = std::filesystem::path(SHARDFIT_SOURCE_DIR) / "tests/runtime/tokenizer/data";

void expect_golden(const Tokenizer& tokenizer, const std::string& name) {
  const Json golden = read_json_file(kData / (name + ".golden.json"));
  ASSERT_GT(golden.at("texts").size(), 50u);
  for (std::size_t i = 0; i < golden.at("texts").size(); ++i) {
    const std::string text = golden["texts"][i];
    const auto ids = golden["ids"][i].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text), ids) << name << ": " << Json(text).dump();
    EXPECT_EQ(tokenizer.encode(text, false), golden["plain_ids"][i].get<std::vector<TokenId>>())
        << name << ": " << Json(text).dump();
    EXPECT_EQ(tokenizer.decode(ids), golden["decoded"][i].get<std::string>()) << name << ": " << Json(text).dump();
  }
}

class Golden : public testing::TestWithParam<const char*> {};
TEST_P(Golden, EqualsTheLibraryTokenizers) {
  expect_golden(Tokenizer::load(kData / (std::string(GetParam()) + ".json")), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Kinds, Golden,
                         testing::Values("gpt2", "gpt2_prefix", "llama3", "qwen", "smollm", "o200k", "deepseek",
                                         "behaviours"),
                         [](const auto& info) { return std::string(info.param); });

// SmolLM2's own tokenizer.json (2.7 MB) is not kept here: SHARDFIT_SMOLLM2 names a folder that has it.
TEST(SmolLm2, EqualsTheLibraryTokenizers) {
  const char* folder = std::getenv("SHARDFIT_SMOLLM2");
  if (folder == nullptr) GTEST_SKIP() << "set SHARDFIT_SMOLLM2 to SmolLM2's model folder";
  expect_golden(Tokenizer::load(folder), "smollm2");
}

TEST(Tokenizer, ThreadsShareOneCache) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "llama3.json");
  std::string text;
  for (int i = 0; i < 3000; ++i) text += " word" + std::to_string(i * 7919 % 1000) + ", \xE4\xBD\xA0";
  const auto expected = Tokenizer::load(kData / "llama3.json").encode(text);
  std::vector<std::vector<TokenId>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer.encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(Tokenizer, BytesThatAreNotUtf8CountAsReplacementCharacters) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "gpt2.json");
  EXPECT_EQ(tokenizer.encode("a\xFFz\xE4\xBDq\xF0\x9F\x98"), tokenizer.encode("a\uFFFDz\uFFFDq\uFFFD"));
  const TokenId half =
      tokenizer.encode("\xC3\xA9", false).front();  // first byte of a character that the small vocabulary may split
  EXPECT_FALSE(tokenizer.decode(std::vector<TokenId>{half, -1, 1 << 30}).empty());
}

// A tokenizer.json with one part replaced.
std::filesystem::path with(const std::string& pointer, const Json& value) {
  Json json = read_json_file(kData / "gpt2.json");
  json[Json::json_pointer(pointer)] = value;
  const auto path = std::filesystem::path(testing::TempDir()) / "shardfit_tokenizer_part.json";
  std::ofstream(path) << json.dump();
  return path;
}

TEST(Tokenizer, NamesWhatItDoesNotSupport) {
  const auto message = [](const std::string& pointer, const Json& value) -> std::string {
    try {
      Tokenizer::load(with(pointer, value));
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status, kExitBadInput);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("/model/type", "Unigram").find("kind Unigram"), std::string::npos);
  EXPECT_NE(message("/model/type", "WordPiece").find("kind WordPiece"), std::string::npos);
  EXPECT_NE(message("/model/byte_fallback", true).find("SentencePiece"), std::string::npos);
  EXPECT_NE(message("/pre_tokenizer", {{"type", "Metaspace"}}).find("Metaspace"), std::string::npos);
  EXPECT_NE(message("/pre_tokenizer", nullptr).find("without a ByteLevel step"), std::string::npos);
  EXPECT_NE(message("/normalizer", {{"type", "Prepend"}, {"prepend", "_"}}).find("Prepend"), std::string::npos);
  EXPECT_NE(message("/model/merges/0", "no such").find("/model/merges/0"), std::string::npos);
  EXPECT_NE(message("/model/vocab/!", -5).find("-5"), std::string::npos);
  EXPECT_NE(message("/model/vocab/!", 1e12).find("whole number"), std::string::npos);
  EXPECT_NE(message("/added_tokens", "x").find("cannot be read"), std::string::npos);
  EXPECT_NE(message("/model", 3).find("cannot be read"), std::string::npos);
  const auto split = [](const char* regex) {
    return Json{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  for (const char* regex : {"(", ")", "[a", "a{2", "*", "(?<=a)b", "\\p{Han}", "(ab)*", "[b-a]", "\\x{110000}",
                            "a{99999}", "\\", "[[:alpha:]]"})
    EXPECT_NE(message("/pre_tokenizer", split(regex)).find("the Split pattern"), std::string::npos) << regex;
}

TEST(Tokenizer, SaysWhichFileIsMissing) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "shardfit_no_tokenizer";
  std::filesystem::create_directories(folder);
  EXPECT_THROW(Tokenizer::load(folder), Error);
  std::ofstream(folder / "tokenizer.model") << "x";
  try {
    Tokenizer::load(folder);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, "tokenizer_unsupported");
  }
}

TEST(EndOfText, ComesFromTheTokenizerBeforeTheModel) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "gpt2.json");
  const auto folder = std::filesystem::path(testing::TempDir()) / "shardfit_end_of_text";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_EQ(end_of_text(folder, &tokenizer), std::nullopt);
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": 9})";
  EXPECT_EQ(end_of_text(folder, &tokenizer), 9);
  std::ofstream(folder / "config.json") << R"({"eos_token_id": [5, 6]})";
  EXPECT_EQ(end_of_text(folder, nullptr), 5);
  std::ofstream(folder / "special_tokens_map.json") << R"({"eos_token": {"content": "<|im_end|>"}})";
  EXPECT_EQ(end_of_text(folder, &tokenizer), tokenizer.id_of("<|im_end|>"));
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": "<|endoftext|>"})";
  EXPECT_EQ(end_of_text(folder, &tokenizer), tokenizer.id_of("<|endoftext|>"));
  EXPECT_EQ(end_of_text(folder, nullptr), 5);
}

}  // namespace
}  // namespace shardfit::tokenizer
