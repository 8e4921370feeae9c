#include "runtime/checkpoint/safetensors.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "runtime/checkpoint/weights.hpp"
#include "runtime/checkpoint/xxh64.hpp"

namespace shardfit::checkpoint {
namespace {

const std::filesystem::path kModels = std::filesystem::path(SHARDFIT_SOURCE_DIR) / "tests/runtime/data";

std::filesystem::path temporary(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / ("shardfit_st_" + std::to_string(::getpid()) + "_" + name);
}

TEST(Xxh64, EqualsTheReference) {
  // xxhsum -H1 of xxHash 0.8.1.
  const auto of = [](const std::string& text) {
    Xxh64 hash;
    hash.update(std::as_bytes(std::span(text)));
    return hash.hex();
  };
  EXPECT_EQ(of(""), "ef46db3751d8e999");
  EXPECT_EQ(of("a"), "d24ec4f1a98c6e5b");
  EXPECT_EQ(of("The quick brown fox jumps over the lazy dog"), "0b242d361fda71bc");
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  for (const std::size_t step : {1u, 3u, 31u, 32u, 33u, 500u}) {  // piece by piece = at once
    Xxh64 hash;
    for (std::size_t at = 0; at < text.size(); at += step)
      hash.update(std::as_bytes(std::span(text)).subspan(at, std::min(step, text.size() - at)));
    EXPECT_EQ(hash.hex(), of(text)) << step;
  }
}

TEST(Half, Fp16RoundsToNearestEvenEverywhere) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_fp16(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(from_fp16(to_fp16(value))));
    } else {
      EXPECT_EQ(to_fp16(value), bits);
    }
  }
  for (std::uint32_t bits = 1; bits < 0x7C00; ++bits) {  // halfway between neighbours goes to the even one
    const auto low = static_cast<std::uint16_t>(bits - 1), high = static_cast<std::uint16_t>(bits);
    const float middle = bits == 0x7BFF + 1 ? 0 : (from_fp16(low) + from_fp16(high)) / 2;
    EXPECT_EQ(to_fp16(middle), low % 2 == 0 ? low : high) << bits;
    EXPECT_EQ(to_fp16(std::nextafter(middle, 1e9f)), high) << bits;
    EXPECT_EQ(to_fp16(-middle), (low % 2 == 0 ? low : high) | 0x8000) << bits;
  }
  EXPECT_EQ(to_fp16(65519.99f), 0x7BFF);
  EXPECT_EQ(to_fp16(65520.0f), 0x7C00);
  EXPECT_EQ(to_fp16(1e30f), 0x7C00);
  EXPECT_EQ(to_fp16(-std::numeric_limits<float>::infinity()), 0xFC00);
}

TEST(Half, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // halfway, to even
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const auto path = temporary("round.safetensors");
  std::vector<float> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37f - 5;
  const std::vector<TensorToWrite> tensors = {
      tensor_of("z", {10, 10}, values), tensor_of("b", {100}, values, Storage::kBf16),
      tensor_of("h", {4, 25}, values, Storage::kF16), tensor_of("empty", {0, 3}, {}),
      tensor_of("scalar", {}, std::span(values).first(1))};
  const Written written =
      write_safetensors(real_files(), path, tensors, {{"format", "pt"}}, 16);  // a buffer that cuts tensors
  EXPECT_EQ(written.bytes, static_cast<std::int64_t>(std::filesystem::file_size(path)));
  Xxh64 hash;
  const std::string bytes = read_file(path);
  hash.update(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(written.xxh64, hash.hex());

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.find("h")->shape, (std::vector<std::int64_t>{4, 25}));
  std::vector<float> part(30);
  file.read_fp32("z", 50, part);
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], values[50 + i]);
  file.read_fp32("b", 7, part);
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], from_bf16(to_bf16(values[7 + i])));
  file.read_fp32("h", 70, part);
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], from_fp16(to_fp16(values[70 + i])));
  file.read_fp32("scalar", 0, std::span(part).first(1));
  EXPECT_EQ(part[0], values[0]);
  EXPECT_THROW(file.read_fp32("z", 80, part), Error);
  EXPECT_THROW(file.read_fp32("nothing", 0, part), Error);
  std::filesystem::remove(path);
}

// The file "safetensors of `header` and `data`", or the error it gives.
std::string opened(const std::string& header, std::size_t data, std::uint64_t length = 0) {
  const auto path = temporary("hostile.safetensors");
  if (length == 0) length = header.size();
  std::ofstream(path, std::ios::binary) << std::string(reinterpret_cast<const char*>(&length), 8) << header
                                        << std::string(data, 'x');
  try {
    SafetensorsFile file(path);
    return "opened";
  } catch (const Error& error) {
    return error.code;
  }
}

TEST(Safetensors, HostileHeadersAreRefused) {
  EXPECT_EQ(opened(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "opened");
  EXPECT_EQ(opened(R"({})", 0), "opened");
  for (
      const char* header :
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}})",                     // beyond the end
       R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",                      // size
       R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",                      // type
       R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",                     // negative
       R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})",  // overflow
       R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})",   //
       R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",                    //
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",                      // backwards
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",                      // gap in front
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",                      // bytes left over
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",  // overlap
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",  // twice
       R"({"a":{"dtype":"F32","shape":[2]}})", R"({"a":3})", R"([1])", R"({"__metadata__":{"x":1}})", R"({"a":)", "",
       R"({"__metadata__":3})"})
    EXPECT_EQ(opened(header, 8), "bad_safetensors") << header;
  EXPECT_EQ(opened("{}", 0, 1000), "bad_safetensors");
  EXPECT_EQ(opened("{}", 0, ~0ull), "bad_safetensors");
  EXPECT_EQ(opened("{}", 0, 100'000'001), "bad_safetensors");
  std::filesystem::remove(temporary("hostile.safetensors"));
}

TEST(Safetensors, DamagedFilesNeverCrash) {
  const std::string good = read_file(kModels / "llama_tied/golden.safetensors");
  const auto path = temporary("fuzz.safetensors");
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = good.substr(0, round % 3 == 0 ? random() % good.size() : good.size());
    for (int i = 0; i < 1 + round % 4 && !bytes.empty(); ++i)
      bytes[random() % std::min<std::size_t>(bytes.size(), 3000)] = static_cast<char>(random());
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      const SafetensorsFile file(path);
      for (const auto& [name, tensor] : file.tensors()) {
        std::vector<float> out(static_cast<std::size_t>(tensor.elements()));
        file.read_fp32(name, 0, out);
      }
    } catch (const Error&) {
    }
  }
  std::filesystem::remove(path);
}

TEST(Weights, HuggingFaceFoldersAreReadByName) {
  for (const char* name : {"llama_tied", "llama_untied", "mistral"}) {  // bf16, fp32, fp16
    const HuggingFaceWeights weights(kModels / name);
    ASSERT_NE(weights.find("model.embed_tokens.weight"), nullptr);
    EXPECT_EQ(weights.find("lm_head.weight") == nullptr, std::string(name) == "llama_tied");
    FlatUnit unit{"block.1", true, {}, 0};
    unit.add("model.layers.1.input_layernorm.weight", {48});
    unit.add("model.layers.1.self_attn.k_proj.weight", {24, 48});
    weights.check({unit});
    std::vector<float> whole(static_cast<std::size_t>(unit.padded(1))), pieces;
    weights.read_slice(unit, 0, 1, whole);
    double sum = 0;
    for (int i = 0; i < 48; ++i) sum += whole[static_cast<std::size_t>(i)];
    EXPECT_NEAR(sum / 48, 1, 0.1);  // a norm
    for (std::int64_t rank = 0; rank < 7; ++rank) {
      std::vector<float> slice(static_cast<std::size_t>(unit.slice(7)), -1);
      weights.read_slice(unit, rank, 7, slice);
      pieces.insert(pieces.end(), slice.begin(), slice.end());
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(pieces[i], i < whole.size() ? whole[i] : 0.0f) << i;
  }
}

TEST(Weights, ModelsSavedWithoutTheirHeadAreFound) {
  const auto folder = temporary("base");
  std::filesystem::create_directories(folder);
  const std::vector<float> values(6, 1.5f);
  write_safetensors(
      real_files(), folder / "model.safetensors",
      {tensor_of("h.0.ln_1.weight", {6}, values), tensor_of("layers.0.mlp.up_proj.weight", {2, 3}, values)});
  const HuggingFaceWeights weights(folder);
  EXPECT_NE(weights.find("transformer.h.0.ln_1.weight"), nullptr);
  EXPECT_NE(weights.find("model.layers.0.mlp.up_proj.weight"), nullptr);
  FlatUnit unit{"u", true, {}, 0};
  unit.add("transformer.h.0.ln_1.weight", {6});
  unit.add("transformer.h.0.ln_1.bias", {6});
  unit.add("model.layers.0.mlp.up_proj.weight", {3, 2});
  try {
    weights.check({unit});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ln_1.bias"), std::string::npos) << error.what();
  }
  std::vector<float> out(6);
  EXPECT_THROW(weights.read("model.layers.0.mlp.up_proj.weight", {3, 2}, 0, out), Error);
  std::filesystem::remove_all(folder);
}

TEST(Weights, AnIndexNamesTheFiles) {
  const auto folder = temporary("index");
  std::filesystem::create_directories(folder);
  const std::vector<float> values{1, 2};
  write_safetensors(real_files(), folder / "a.safetensors", {tensor_of("x", {2}, values)});
  const auto index = [&](const std::string& map) {
    std::ofstream(folder / "model.safetensors.index.json") << "{\"weight_map\": " << map << "}";
  };
  index(R"({"x": "a.safetensors"})");
  EXPECT_NE(HuggingFaceWeights(folder).find("x"), nullptr);
  for (const char* map : {R"({"y": "a.safetensors"})", R"({"x": "../a.safetensors"})", R"({"x": "b.safetensors"})",
                          R"({"x": 3})", "[]"}) {
    index(map);
    EXPECT_THROW(HuggingFaceWeights{folder}, Error) << map;
  }
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "pytorch_model.bin") << "x";
  try {
    HuggingFaceWeights weights(folder);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("pytorch_model.bin"), std::string::npos);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shardfit::checkpoint
