#include "runtime/data/dataset.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"

namespace shardfit::data {
namespace {

using Ids = std::vector<std::int32_t>;
const std::filesystem::path kTests = std::filesystem::path(SHARDFIT_SOURCE_DIR) / "tests/runtime";

class DatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("shardfit_data_" + std::to_string(::getpid()) + "_" +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }
  Source source(const std::string& format, std::vector<std::string> files, bool packing, std::int64_t length) {
    Source s;
    s.files = std::move(files);
    s.format = format;
    s.packing = packing;
    s.sequence_length = length;
    s.vocabulary = 1000;
    s.end_of_text = 2;
    s.cache_folder = folder_ / "out/cache";
    return s;
  }
  std::string error(const Source& s) {
    try {
      Dataset::open(s);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  std::filesystem::path folder_;
};

TEST_F(DatasetTest, PacksDocumentsWithTheEndOfTextTokenBetween) {
  const auto f = file(
      "a.jsonl",
      "{\"input_ids\": [10, 11, 12]}\n\n{\"input_ids\": []}\n{\"input_ids\": [20, 21, 22, 23, 24]}\n{\"input_ids\": [30]}\n");
  const Dataset data = Dataset::open(source("jsonl", {f}, true, 4));
  EXPECT_EQ(data.tokens(), 11);  // 3 + separator + 5 + separator + 1
  EXPECT_EQ(data.documents(), 3);
  ASSERT_EQ(data.rows(), 3);
  const Row first = data.row(0), second = data.row(1), third = data.row(2);
  EXPECT_EQ(first.ids, (Ids{10, 11, 12, 2}));
  EXPECT_EQ(first.labels, first.ids);
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(first.document_starts, (Ids{0}));
  EXPECT_EQ(first.supervised, 3);
  EXPECT_EQ(second.ids, (Ids{20, 21, 22, 23}));
  EXPECT_EQ(third.ids, (Ids{24, 2, 30, 0}));
  EXPECT_EQ(third.labels, (Ids{24, 2, 30, kNotSupervised}));
  EXPECT_EQ(third.positions, (Ids{0, 1, 0, 0}));  // the document goes on at the start of a row from 0
  EXPECT_EQ(third.document_starts, (Ids{0, 2}));
  EXPECT_EQ(third.length, 3);
  EXPECT_EQ(third.supervised, 2);
}

TEST_F(DatasetTest, WithoutPackingEachDocumentIsARow) {
  const auto f =
      file("a.jsonl", "{\"input_ids\": [10, 11, 12]}\n{\"input_ids\": [20, 21, 22, 23, 24]}\n{\"input_ids\": []}\n");
  const Dataset data = Dataset::open(source("jsonl", {f}, false, 4));
  ASSERT_EQ(data.rows(), 3);
  EXPECT_EQ(data.row(0).ids, (Ids{10, 11, 12, 0}));
  EXPECT_EQ(data.row(0).labels, (Ids{10, 11, 12, kNotSupervised}));
  EXPECT_EQ(data.row(1).ids, (Ids{20, 21, 22, 23}));
  EXPECT_EQ(data.row(2).length, 0);
  EXPECT_EQ(data.row(2).supervised, 0);
  EXPECT_TRUE(data.row(2).document_starts.empty());
  EXPECT_THROW(data.row(3), Error);
}

TEST_F(DatasetTest, LabelsStayBesideTheirTokens) {
  const auto f =
      file("a.jsonl",
           "{\"input_ids\": [5, 6]}\n{\"input_ids\": [7, 8, 9], \"labels\": [-100, 8, 1]}\n{\"input_ids\": [4]}\n");
  const Dataset packed = Dataset::open(source("jsonl", {f}, true, 16));
  const Row row = packed.row(0);
  EXPECT_EQ(Ids(row.ids.begin(), row.ids.begin() + 8), (Ids{5, 6, 2, 7, 8, 9, 2, 4}));
  // The separator after a document with labels of its own is not supervised.
  EXPECT_EQ(Ids(row.labels.begin(), row.labels.begin() + 8), (Ids{5, 6, 2, -100, 8, 1, -100, 4}));
  EXPECT_EQ(row.supervised, 5);
  const Dataset rows = Dataset::open(source("jsonl", {f}, false, 2));
  EXPECT_EQ(rows.row(1).labels, (Ids{-100, 8}));
  EXPECT_EQ(rows.row(1).supervised, 1);
}

TEST_F(DatasetTest, GoldenBatchesAreReadAsTheyWereMade) {
  Source s = source("jsonl", {(kTests / "data/batches.jsonl").string()}, false, 24);
  s.vocabulary = 272;
  const Dataset data = Dataset::open(s);
  ASSERT_EQ(data.rows(), 40);
  std::int64_t supervised = 0;
  for (std::int64_t r = 0; r < 4; ++r) supervised += data.row(r).supervised;
  EXPECT_EQ(supervised, read_json_file(kTests / "data/llama_tied/golden.json").at("supervised_tokens"));
}

TEST_F(DatasetTest, PromptsAreNotSupervisedAndCompletionsEnd) {
  const auto tokenizer = tokenizer::Tokenizer::load(kTests / "tokenizer/data/llama3.json");
  const auto f = file("a.jsonl", R"({"prompt": "What is it?", "completion": " A test."})");
  Source s = source("jsonl", {f}, false, 64);
  s.tokenizer = &tokenizer;
  const Dataset data = Dataset::open(s);
  const Row row = data.row(0);
  Ids prompt = tokenizer.encode("What is it?"), completion = tokenizer.encode(" A test.", false);
  completion.push_back(2);
  ASSERT_EQ(row.length, static_cast<std::int64_t>(prompt.size() + completion.size()));
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), row.ids.begin()));
  EXPECT_TRUE(std::equal(completion.begin(), completion.end(),
                         row.labels.begin() + static_cast<std::ptrdiff_t>(prompt.size())));
  EXPECT_EQ(row.supervised, static_cast<std::int64_t>(completion.size()));
  EXPECT_EQ(row.labels[prompt.size() - 1], kNotSupervised);
}

TEST_F(DatasetTest, TextComesFromFilesFoldersAndListsInOrder) {
  const auto tokenizer = tokenizer::Tokenizer::load(kTests / "tokenizer/data/gpt2.json");
  file("corpus/b.txt", "second");
  file("corpus/a/z.txt", "first");
  file("corpus/.hidden", "never");
  file("corpus/empty.txt", "");
  const auto single = file("one.txt", "third \xFF");
  Source s = source("text", {(folder_ / "corpus").string(), single}, true, 100);
  s.tokenizer = &tokenizer;
  const Dataset data = Dataset::open(s);
  Ids expected = tokenizer.encode("first");
  expected.push_back(2);
  for (const auto id : tokenizer.encode("second")) expected.push_back(id);
  expected.push_back(2);
  for (const auto id : tokenizer.encode("third \xFF")) expected.push_back(id);
  const Row row = data.row(0);
  EXPECT_EQ(Ids(row.ids.begin(), row.ids.begin() + row.length), expected);
  ASSERT_EQ(data.warnings().size(), 1u);
  EXPECT_NE(data.warnings()[0].find("one.txt"), std::string::npos);
}

TEST_F(DatasetTest, ALongTextCutIntoPiecesHasTheTokensOfTheWhole) {
  const auto tokenizer = tokenizer::Tokenizer::load(kTests / "tokenizer/data/qwen.json");
  std::string text;
  std::uint32_t state = 1;
  const char* words[] = {"the",          " lazy",    " dog's", "\n\n  ",   " 12,345", " caf\u00e9",
                         "\u4f60\u597d", " e\u0301", ".",      " trained", "   ",     "\t"};
  while (text.size() < 5'000'000)
    text += words[(state = state * 1664525 + 1013904223) >> 20 & 0xFFF ? (state >> 8) % 12 : 0];
  const auto f = file("long.txt", text);
  Source s = source("text", {f}, true, 1 << 22);
  s.tokenizer = &tokenizer;
  const Dataset data = Dataset::open(s);
  const Row row = data.row(0);
  EXPECT_TRUE(Ids(row.ids.begin(), row.ids.begin() + row.length) == tokenizer.encode(text));
  EXPECT_EQ(row.document_starts.size(), 1u);
}

std::string raw(const std::vector<int>& ids, int width) {
  std::string bytes;
  for (const int id : ids)
    for (int b = 0; b < width; ++b) bytes += static_cast<char>(id >> (8 * b) & 0xFF);
  return bytes;
}

TEST_F(DatasetTest, TokenFilesAreReadWhereTheyLie) {
  file("t/a.bin", raw({10, 11, 2, 12, 13}, 2));
  file("t/a.bin.json", R"({"dtype": "uint16"})");
  file("t/b.bin", raw({20, 9, 21, 22}, 4));
  file("t/b.bin.json", R"({"dtype": "uint32", "eos_token_id": 9})");
  const Dataset data = Dataset::open(source("tokens", {(folder_ / "t").string()}, true, 6));
  EXPECT_EQ(data.documents(), 4);
  ASSERT_EQ(data.rows(), 2);
  EXPECT_EQ(data.row(0).ids, (Ids{10, 11, 2, 12, 13, 9}));  // the first file did not end its document
  EXPECT_EQ(data.row(0).document_starts, (Ids{0, 3}));
  EXPECT_EQ(data.row(1).ids, (Ids{20, 9, 21, 22, 0, 0}));
  EXPECT_EQ(data.row(1).document_starts, (Ids{0, 2}));
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out/cache"))
    if (entry.path().extension() == ".bin") {
      EXPECT_LT(entry.file_size(), 2000u);
    }
  const Dataset rows = Dataset::open(source("tokens", {(folder_ / "t/a.bin").string()}, false, 6));
  ASSERT_EQ(rows.rows(), 2);
  EXPECT_EQ(rows.row(0).ids, (Ids{10, 11, 2, 0, 0, 0}));
}

TEST_F(DatasetTest, TheCacheIsMadeOnceAndFollowsTheContent) {
  const auto f = file("a.jsonl", "{\"input_ids\": [10, 11, 12]}\n");
  const Source s = source("jsonl", {f}, true, 4);
  const std::string hash = Dataset::open(s).content_hash();
  std::filesystem::path cache;
  for (const auto& entry : std::filesystem::directory_iterator(s.cache_folder))
    if (entry.path().extension() == ".bin") cache = entry.path();
  const auto time = std::filesystem::last_write_time(cache);
  EXPECT_EQ(Dataset::open(s).content_hash(), hash);
  EXPECT_EQ(std::filesystem::last_write_time(cache), time);
  // A damaged cache is made again.
  std::filesystem::resize_file(cache, 20);
  EXPECT_EQ(Dataset::open(s).row(0).ids, (Ids{10, 11, 12, 0}));
  // Other content, other cache; the same content under another name is the same data.
  file("a.jsonl", "{\"input_ids\": [10, 11, 13]}\n");
  EXPECT_NE(Dataset::open(s).content_hash(), hash);
  EXPECT_EQ(Dataset::open(s).row(0).ids, (Ids{10, 11, 13, 0}));
  Source other = s;
  other.files = {file("b.jsonl", "{\"input_ids\": [10, 11, 12]}\n")};
  EXPECT_EQ(Dataset::open(other).content_hash(), hash);
  // Without a folder for it nothing is left behind.
  other.cache_folder.clear();
  EXPECT_EQ(Dataset::open(other).row(0).ids, (Ids{10, 11, 12, 0}));
}

TEST_F(DatasetTest, ProcessesShareOneCache) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "{\"input_ids\": [" + std::to_string(i % 900) + ", 5, 6]}\n";
  const Source s = source("jsonl", {file("a.jsonl", text)}, true, 64);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(Dataset::open(s, 60).tokens() == 79999 ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  int caches = 0;
  for (const auto& entry : std::filesystem::directory_iterator(s.cache_folder))
    caches += entry.path().filename().string().starts_with("tokens-");
  EXPECT_EQ(caches, 1);
}

TEST_F(DatasetTest, BadRowsAreNamedByFileAndLine) {
  const auto with = [&](const std::string& line) {
    return error(source("jsonl", {file("bad.jsonl", "{\"input_ids\": [1]}\n" + line + "\n")}, true, 4));
  };
  for (const char* line :
       {"{", "[1]", "{\"input_ids\": 3}", "{\"input_ids\": [1.5]}", "{\"input_ids\": [\"a\"]}",
        "{\"input_ids\": [1000]}", "{\"input_ids\": [-1]}", "{\"input_ids\": [1e300]}",
        "{\"input_ids\": [1, 2], \"labels\": [1]}", "{\"input_ids\": [1], \"labels\": [-5]}", "{\"body\": \"x\"}",
        "{\"text\": 3}", "{\"prompt\": \"x\"}", "{\"text\": \"needs a tokenizer\"}"}) {
    EXPECT_NE(with(line).find("bad.jsonl: line 2"), std::string::npos) << line << " gives: " << with(line);
  }
  EXPECT_NE(error(source("jsonl", {(folder_ / "no.jsonl").string()}, true, 4)).find("no.jsonl"), std::string::npos);
  EXPECT_NE(error(source("jsonl", {file("e.jsonl", "\n")}, true, 4)).find("no tokens"), std::string::npos);
  Source s = source("jsonl", {file("two.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [3]}\n")}, true, 4);
  s.end_of_text.reset();
  EXPECT_NE(error(s).find("end-of-text"), std::string::npos);
  s.packing = false;
  EXPECT_EQ(error(s), "no error");
}

TEST_F(DatasetTest, BadTokenFilesAreNamed) {
  const auto s = source("tokens", {file("t.bin", raw({1, 2, 3}, 2))}, true, 4);
  EXPECT_NE(error(s).find("t.bin.json"), std::string::npos);
  file("t.bin.json", "{}");
  EXPECT_NE(error(s).find("dtype"), std::string::npos);
  file("t.bin.json", R"({"dtype": "uint32"})");
  EXPECT_NE(error(s).find("not a whole number"), std::string::npos);
  file("t.bin.json", R"({"dtype": "uint16"})");
  EXPECT_EQ(error(s), "no error");
  file("t.bin", raw({1, 2, 5000}, 2));
  EXPECT_NE(error(s).find("token 2"), std::string::npos);
}

}  // namespace
}  // namespace shardfit::data
