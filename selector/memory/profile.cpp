#include "selector/memory/profile.hpp"

#include <cctype>

namespace shardfit::memory {
namespace {

struct Milestone {
  std::string_view commit;
  int age;
};

// torchtitan commits in order; each opens or closes a rule below. Source: the repository's history.
enum TitanAge { kTitanFirst = 0, kTitanLossFloat = 3, kTitanSplitRoot = 9 };
constexpr Milestone kTitan[] = {{"2b017fdd6", 0}, {"83c879f18", 1},  {"40f8fd007", 2},  {"2271b6386", 3},  {"5940ddeb5", 4},
                                {"9dec370", 5},   {"069bae286", 6},  {"e23bb707d", 7},  {"775a486", 8},    {"6fc499f6f", 9},
                                {"d9bdfbb20", 10}, {"72f89d206", 11}, {"fca8ab7be", 12}, {"27aa49077", 13}, {"bcc09297a", 14}};

struct Row {
  std::string_view framework, trainer;  // "*" = any
  int since;
  Dialect dialect;
};

// clang-format off
constexpr Dialect kHuggingFace{};
// models/llama/model.py: RMSNorm in Python until 2024-07, then nn.RMSNorm; complex RoPE in fp32; k and v repeated; no dropout
constexpr Dialect kTitanPython{.norm = NormStyle::kUpcast, .rope_temporary = 10, .repeats_kv = true, .lora = LoraStyle::kTorchtune, .dropout = false};
constexpr Dialect kTitanModule{.norm = NormStyle::kComposite, .rope_temporary = 10, .repeats_kv = true, .lora = LoraStyle::kTorchtune, .dropout = false};
// torchtune/modules: rms_norm.py in Python, position_embeddings.py in fp32
constexpr Dialect kTorchtune{.norm = NormStyle::kUpcast, .rope_temporary = 12, .repeats_kv = true, .lora = LoraStyle::kTorchtune, .dropout = false};
// litgpt/model.py: packed qkv, split and copied; bnb's Linear4bit keeps its input
constexpr Dialect kLitgpt{.norm = NormStyle::kUpcast, .rope_temporary = 6, .repeats_kv = true, .packs_qkv = true, .lora = LoraStyle::kLitgpt, .quantized_saves_input = true};
// llm-foundry: layer norm kernels, packed Wqkv used as views
constexpr Dialect kComposer{.norm = NormStyle::kFused, .packs_qkv = true, .packed_views = true, .dropout = false};
constexpr Dialect kMegatron{.norm = NormStyle::kFused, .rope_temporary = 4, .fused_mlp = true, .packs_qkv = true, .packed_views = true, .softmax_fp32 = false, .adds_mask = false, .copies_attention = false, .weight_gradient_fused = true};
constexpr Dialect kXtuner{.norm = NormStyle::kFused};

constexpr Row kRows[] = {
    {"*", "*", 0, kHuggingFace},
    {"*", "torchtitan", 0, kTitanPython},
    {"*", "torchtitan", kTitanLossFloat, kTitanModule},
    {"*", "torchtune", 0, kTorchtune},
    {"*", "litgpt", 0, kLitgpt},
    {"*", "composer", 0, kComposer},
    {"*", "xtuner", 0, kXtuner},
    {"megatron", "*", 0, kMegatron},
};
// clang-format on

}  // namespace

int release_number(std::string_view version) {
  int parts[2] = {0, 0}, n = 0;
  bool in_number = false;
  for (char c : version) {
    if (std::isdigit(static_cast<unsigned char>(c))) {
      if (parts[n] < 10000) parts[n] = parts[n] * 10 + (c - '0');
      in_number = true;
    } else if (in_number) {
      if (c != '.' || ++n > 1) break;
      in_number = false;
    }
  }
  return parts[0] * 100 + (parts[1] < 100 ? parts[1] : 99);
}

int trainer_age(std::string_view trainer, std::string_view version) {
  if (version.empty()) return kNewest;
  if (trainer == "torchtitan") {
    for (const auto& m : kTitan)
      if (version.substr(0, 7) == m.commit.substr(0, 7)) return m.age;
    return kNewest;
  }
  if (trainer == "transformers") return release_number(version);
  return kNewest;
}

Dialect dialect_of(std::string_view framework, std::string_view trainer, std::string_view version) {
  const int age = trainer_age(trainer, version);
  Dialect d = kHuggingFace;
  for (const auto& row : kRows)
    if ((row.framework == "*" || row.framework == framework) && (row.trainer == "*" || row.trainer == trainer) && row.since <= age) d = row.dialect;
  return d;
}

}  // namespace shardfit::memory
