#include "selector/memory/profile.hpp"

#include <cctype>
#include <iterator>
#include <string>

#include "embedded/memory_commits.hpp"

namespace shardfit::memory {
namespace {

struct Row {
  std::string_view framework, trainer;  // "*" = any
  int since;
  Dialect dialect;
};

// clang-format off
constexpr Dialect kHuggingFace{};
// models/llama/model.py: RMSNorm in Python until 3b39d7ab0, then nn.RMSNorm; complex RoPE in fp32; k and v repeated; no dropout
constexpr Dialect kTitanPython{.norm = NormStyle::kUpcast, .rope_copies = 0, .rope_temporary = 10, .repeats_kv = true, .lora = LoraStyle::kTorchtune, .dropout = false};
constexpr Dialect kTitanModule{.norm = NormStyle::kComposite, .rope_copies = 0, .rope_temporary = 10, .repeats_kv = true, .lora = LoraStyle::kTorchtune, .dropout = false};
// torchtune/modules: rms_norm.py in Python, position_embeddings.py in fp32
constexpr Dialect kTorchtune{.norm = NormStyle::kUpcast, .rope_copies = 0, .rope_temporary = 12, .repeats_kv = true, .lora = LoraStyle::kTorchtune, .dropout = false};
// litgpt/model.py: packed qkv, split and copied; bnb's Linear4bit keeps its input
constexpr Dialect kLitgpt{.norm = NormStyle::kUpcast, .rope_copies = 0, .rope_temporary = 6, .repeats_kv = true, .packs_qkv = true, .lora = LoraStyle::kLitgpt, .quantized_saves_input = true};
// llm-foundry: layer norm kernels, packed Wqkv used as views
constexpr Dialect kComposer{.norm = NormStyle::kFused, .packs_qkv = true, .packed_views = true, .dropout = false};
constexpr Dialect kMegatron{.norm = NormStyle::kFused, .rope_copies = 0, .rope_temporary = 4, .fused_mlp = true, .packs_qkv = true, .packed_views = true, .softmax_fp32 = false, .adds_mask = false, .copies_attention = false, .weight_gradient_fused = true};
constexpr Dialect kXtuner{.norm = NormStyle::kFused};

constexpr Row kRows[] = {
    {"*", "*", 0, kHuggingFace},
    {"*", "torchtitan", 0, kTitanPython},
    {"*", "torchtitan", 20250319, kTitanModule},
    {"*", "torchtune", 0, kTorchtune},
    {"*", "litgpt", 0, kLitgpt},
    {"*", "composer", 0, kComposer},
    {"*", "xtuner", 0, kXtuner},
    {"megatron", "*", 0, kMegatron},
};
// clang-format on

// "2023-07", "v1 2025-08", "2.9.0.dev20250815" -> 20230700, 20250800, 20250815; 0 when no date is in it.
int date_in(std::string_view version) {
  for (std::size_t i = 0; i + 6 < version.size(); ++i) {
    if (version.substr(i, 2) != "20" || (i > 0 && std::isdigit(static_cast<unsigned char>(version[i - 1])))) continue;
    const bool dashed = version[i + 4] == '-';
    int digits = 0, value = 0;
    for (std::size_t k = i; k < version.size() && digits < 8; ++k) {
      if (dashed && version[k] == '-') continue;
      if (!std::isdigit(static_cast<unsigned char>(version[k]))) break;
      value = value * 10 + (version[k] - '0');
      ++digits;
    }
    if (digits == 8) return value;
    if (digits == 6 && dashed) return value * 100;
  }
  return 0;
}

// The day of a commit in data/commits.txt.
int commit_date(std::string_view project, std::string_view version) {
  if (version.size() < 7) return kNewest;
  const std::string_view text = embedded::memory_commits();
  const auto begin = text.find("@" + std::string(project) + "\n");
  if (begin == std::string_view::npos) return kNewest;
  auto end = text.find("\n@", begin + 1);
  if (end == std::string_view::npos) end = text.size();
  const auto part = text.substr(begin, end - begin);
  const auto at = part.find(" " + std::string(version.substr(0, 7)));
  if (at == std::string_view::npos) return kNewest;
  const auto line = part.rfind('\n', at);
  int date = 0;
  for (std::size_t i = line + 1; i < at && std::isdigit(static_cast<unsigned char>(part[i])); ++i) date = date * 10 + (part[i] - '0');
  return date > 0 ? date : kNewest;
}

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
  if (trainer == "transformers" || trainer == "accelerate") {
    const int number = release_number(version);
    return number > 0 ? number : kNewest;
  }
  if (const int date = date_in(version)) return date;
  return commit_date(trainer, version);
}

int torch_release_date(std::string_view version) {
  if (version.empty()) return kNewest;
  if (const int date = date_in(version)) return date;
  // days of the x.y.0 releases (pytorch.org/blog)
  static constexpr struct {
    int number, date;
  } kReleases[] = {{112, 20220628}, {113, 20221028}, {200, 20230315}, {201, 20231004}, {202, 20240130}, {203, 20240424}, {204, 20240724}, {205, 20241017},
                   {206, 20250129}, {207, 20250423}, {208, 20250806}, {209, 20251015}, {210, 20260121}, {211, 20260401}};
  const int number = release_number(version);
  int date = kNewest;
  for (const auto& r : kReleases)
    if (r.number <= number) date = r.date;
  return number > kReleases[std::size(kReleases) - 1].number || number < 100 ? kNewest : date;
}

Dialect dialect_of(std::string_view framework, std::string_view trainer, std::string_view version) {
  const int age = trainer_age(trainer, version);
  Dialect d = kHuggingFace;
  for (const auto& row : kRows)
    if ((row.framework == "*" || row.framework == framework) && (row.trainer == "*" || row.trainer == trainer) && row.since <= age) d = row.dialect;
  return d;
}

}  // namespace shardfit::memory
