#include "pricing/gpu_types.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "regions/base/text.hpp"

namespace shardfit::pricing {
namespace {

std::string packed(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool strip(std::string& text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == std::string::npos) return false;
  text.erase(at, word.size());
  return true;
}

}  // namespace

// "A100-80GB-SXM" -> model a100, 80 GB, form sxm. What is left after maker, memory and form is the model.
struct GpuTypes::Parts {
  std::string model, form;
  double memory_gb = 0;

  explicit Parts(std::string_view name) {
    std::string t = packed(name);
    for (const auto* maker : {"nvidia", "amd", "instinct", "tesla", "geforce", "blackwell", "oam"}) strip(t, maker);
    strip(t, "hbm3e") || strip(t, "hbm3") || strip(t, "hbm2e") || strip(t, "hbm2");
    // Memory: "80gb", or Slurm's "80g" at the end.
    for (size_t i = 0; i < t.size(); ++i) {
      if (!std::isdigit(static_cast<unsigned char>(t[i]))) continue;
      size_t j = i;
      while (j < t.size() && std::isdigit(static_cast<unsigned char>(t[j]))) ++j;
      const bool gb = t.compare(j, 2, "gb") == 0, g = !gb && j + 1 == t.size() && t[j] == 'g' && i > 0;
      if (gb || g) {
        // "a10080gb": the model runs into the number; the memory is its last two or three digits.
        static constexpr int kSizes[] = {288, 282, 270, 268, 256, 192, 186, 180, 144, 141, 128, 96, 94,
                                         80,  64,  48,  40,  32,  24,  20,  16,  12,  11,  10,  8};
        const std::string digits = t.substr(i, j - i);
        for (const int size : kSizes) {
          const std::string s = std::to_string(size);
          if (digits.size() >= s.size() && digits.compare(digits.size() - s.size(), s.size(), s) == 0) {
            memory_gb = size;
            t.erase(j - s.size(), s.size() + (gb ? 2 : 1));
            break;
          }
        }
        break;
      }
      i = j;
    }
    for (const auto* f : {"sxm6", "sxm5", "sxm4", "sxm3", "sxm2", "sxm"})
      if (strip(t, f)) form = "sxm";
    if (form.empty() && strip(t, "pcie")) form = "pcie";
    if (form.empty() && t != "nvl" && strip(t, "nvl")) form = "nvl";
    if (form.empty() && (strip(t, "mega") || strip(t, "hgx"))) form = "sxm";  // GCP's a3-megagpu; boards of eight
    strip(t, "generation");
    strip(t, "edition") && (strip(t, "server") || strip(t, "workstation") || strip(t, "maxq"));
    model = t;
  }
};

struct GpuTypes::Index {
  struct Entry {
    std::string key;                 // packed
    std::vector<std::string> names;  // packed
    std::vector<Parts> parts;        // of the key first, then of the names
  };
  std::vector<Entry> entries;
};

GpuTypes::GpuTypes(std::vector<GpuType> types) : types_(std::move(types)) {
  auto index = std::make_shared<Index>();
  for (const auto& t : types_) {
    Index::Entry e{packed(t.key), {}, {Parts(t.key)}};
    for (const auto& n : t.names) {
      e.names.push_back(packed(n));
      e.parts.emplace_back(n);
    }
    index->entries.push_back(std::move(e));
  }
  index_ = std::move(index);
}

GpuTypes GpuTypes::parse(const nlohmann::json& table) {
  std::vector<GpuType> out;
  for (const auto& x : table) {
    GpuType t;
    t.key = x.at("key").get<std::string>();
    t.names.push_back(x.value("name", t.key));
    for (const char* list : {"aliases", "slurm_types"})
      for (const auto& a : x.value(list, nlohmann::json::array())) t.names.push_back(a.get<std::string>());
    if (x.contains("memory_mib") && x["memory_mib"].is_number()) t.memory_mib = x["memory_mib"].get<double>();
    out.push_back(std::move(t));
  }
  return GpuTypes(std::move(out));
}

const GpuType* GpuTypes::find(std::string_view key) const {
  for (const auto& t : types_)
    if (t.key == key) return &t;
  return nullptr;
}

std::vector<const GpuType*> GpuTypes::candidates(std::string_view name) const {
  std::vector<const GpuType*> out;
  const std::string p = packed(name);
  if (p.empty() || name.size() > 200 || types_.empty()) return out;
  for (size_t i = 0; i < types_.size(); ++i)
    if (index_->entries[i].key == p) return {&types_[i]};
  for (size_t i = 0; i < types_.size(); ++i) {
    const auto& names = index_->entries[i].names;
    if (std::find(names.begin(), names.end(), p) != names.end()) out.push_back(&types_[i]);
  }
  if (!out.empty()) return out;
  const Parts want(name);
  if (want.model.empty()) return out;
  for (size_t i = 0; i < types_.size(); ++i) {
    const auto& parts = index_->entries[i].parts;
    const Parts& key = parts.front();
    const bool hit = std::any_of(parts.begin(), parts.end(), [&](const Parts& h) {
      if (h.model != want.model) return false;
      const double memory = key.memory_gb > 0 ? key.memory_gb : h.memory_gb;
      if (want.memory_gb > 0 && memory > 0 && want.memory_gb != memory) return false;
      const std::string& form = key.form.empty() ? h.form : key.form;
      return want.form.empty() || form.empty() || want.form == form;
    });
    if (hit) out.push_back(&types_[i]);
  }
  return out;
}

std::vector<const GpuType*> GpuTypes::candidates(std::string_view name, std::optional<double> memory_gb) const {
  auto all = candidates(name);
  if (!memory_gb || all.size() < 2) return all;
  // Sellers round 81559 MiB (79.6 GiB) to 80 and 183359 MiB (179 GiB) to 180 or 192: the nearest, and those as near.
  const auto distance = [&](const GpuType* t) {
    return t->memory_mib ? std::fabs(*t->memory_mib / 1024.0 / *memory_gb - 1) : 1.0;
  };
  double best = 0.08;
  for (const auto* t : all) best = std::min(best, distance(t));
  std::vector<const GpuType*> out;
  for (const auto* t : all)
    if (distance(t) <= best + 0.01 && distance(t) <= 0.08) out.push_back(t);
  return out.empty() ? all : out;
}

}  // namespace shardfit::pricing
