#include "pricing/instance_names.hpp"

#include <cctype>
#include <cstdlib>
#include <vector>

#include "regions/base/text.hpp"

namespace shardfit::pricing {
namespace {

bool digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }
bool alpha(char c) { return std::isalpha(static_cast<unsigned char>(c)); }
bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

// The number at `at`, -1 where there is none; `at` moves past it.
long number(std::string_view text, size_t& at) {
  if (at >= text.size() || !digit(text[at])) return -1;
  long v = 0;
  while (at < text.size() && digit(text[at]) && v < 100000) v = v * 10 + (text[at++] - '0');
  return v;
}

struct Count {
  std::string_view name;
  double gpus;
};

constexpr Count kAws[] = {
    {"p3.2xlarge", 1},         {"p3.8xlarge", 4},    {"p3.16xlarge", 8},      {"p3dn.24xlarge", 8},
    {"p4d.24xlarge", 8},       {"p4de.24xlarge", 8}, {"p5.4xlarge", 1},       {"p5.48xlarge", 8},
    {"p5e.48xlarge", 8},       {"p5en.48xlarge", 8}, {"p6-b200.48xlarge", 8}, {"p6-b300.48xlarge", 8},
    {"p6e-gb200.36xlarge", 4}, {"g4dn.xlarge", 1},   {"g4dn.2xlarge", 1},     {"g4dn.4xlarge", 1},
    {"g4dn.8xlarge", 1},       {"g4dn.16xlarge", 1}, {"g4dn.12xlarge", 4},    {"g4dn.metal", 8}};

// Azure: vCPUs of the size -> GPUs, by series.
std::optional<double> azure(std::string name) {
  if (starts(name, "standard_")) name = name.substr(9);
  for (char& c : name)
    if (c == ' ') c = '_';
  size_t at = 0;
  while (at < name.size() && alpha(name[at])) ++at;
  const std::string series = name.substr(0, at);
  const long vcpus = number(name, at);
  if (vcpus < 0) return std::nullopt;
  const std::string rest = name.substr(at);
  const auto has = [&](const char* word) { return rest.find(word) != std::string::npos; };
  if (series == "nd")
    return vcpus == 96 || vcpus == 128 ? std::optional(vcpus == 128 && has("gb") ? 4.0 : 8.0) : std::nullopt;
  if (series == "nc" && has("h100")) return static_cast<double>(vcpus) / 40;
  if (series == "nc" && has("a100")) return static_cast<double>(vcpus) / 24;
  if (series == "nc" && has("t4")) return vcpus == 64 ? 4.0 : 1.0;
  if (series == "nc" && has("v3") && !has("_t4")) return static_cast<double>(vcpus) / 6;
  if (series == "nv" && has("a10")) return static_cast<double>(vcpus) / 36;
  return std::nullopt;
}

}  // namespace

std::optional<double> gpus_by_name(std::string_view provider, std::string_view instance) {
  const std::string name = to_lower(instance), seller = to_lower(provider);
  if (name.empty() || name.size() > 200) return std::nullopt;
  size_t at = 0;
  if (seller == "aws") {
    for (const auto& c : kAws)
      if (c.name == name) return c.gpus;
    if (starts(name, "g5.") || starts(name, "g6.") || starts(name, "g6e.")) {
      const std::string size = name.substr(name.find('.') + 1);
      return size == "48xlarge" ? 8.0 : size == "12xlarge" || size == "24xlarge" ? 4.0 : 1.0;
    }
    return std::nullopt;
  }
  if (seller == "azure") return azure(name);
  if (seller.find("oci") != std::string::npos || starts(name, "bm.gpu") || starts(name, "vm.gpu")) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return std::nullopt;
    at = dot + 1;
    const long n = number(name, at);
    return n > 0 && at == name.size() ? std::optional<double>(n) : std::nullopt;
  }
  if (seller == "gcp") {  // a3-highgpu-8g
    if (name.size() < 4 || name.back() != 'g') return std::nullopt;
    const size_t dash = name.rfind('-');
    if (dash == std::string::npos) return std::nullopt;
    at = dash + 1;
    const long n = number(name, at);
    return n > 0 && at + 1 == name.size() ? std::optional<double>(n) : std::nullopt;
  }
  // "8x-H100_SXM-32-65536", "2x RTX 4090": a count before a name.
  if (const long n = number(name, at); n > 0 && at < name.size() && name[at] == 'x' && at + 2 < name.size() &&
                                       !alpha(name[at + 1]) && !digit(name[at + 1]))
    return n;
  // "gpu_8x_b200_sxm6".
  if (starts(name, "gpu_")) {
    at = 4;
    if (const long n = number(name, at); n > 0 && at < name.size() && name[at] == 'x') return n;
  }
  // "8gpu-128vcpu-1600gb" inside a Nebius name.
  for (size_t gpu = name.find("gpu-"); gpu != std::string::npos; gpu = name.find("gpu-", gpu + 1)) {
    size_t from = gpu;
    while (from > 0 && digit(name[from - 1])) --from;
    if (from < gpu)
      if (const long n = number(name, from); n > 0) return n;
  }
  // "8H100.80S.176V", "1A100-80", "2B200".
  at = 0;
  if (seller == "verda" || seller == "datacrunch")
    if (const long n = number(name, at); n > 0 && at < name.size() && alpha(name[at])) return n;
  // "H100-2-80G".
  if (seller == "scaleway") {
    const auto parts = split(name, '-');
    if (parts.size() == 3 && !parts[1].empty() && parts[1].size() <= 2 && digit(parts[1][0]) && parts[2].back() == 'g')
      return std::atof(parts[1].c_str());
  }
  // "scaleway_H100x2", "n3-A100x8-NVLink", "ECS H200 x4": x and a number at the end of a word.
  for (size_t x = name.rfind('x'); x != std::string::npos && x > 0; x = name.rfind('x', x - 1)) {
    at = x + 1;
    const bool before = digit(name[x - 1]) || name[x - 1] == ' ' || alpha(name[x - 1]);
    if (const long n = number(name, at); n > 0 && n <= 16 && before &&
                                         (at == name.size() || name[at] == '-' || name[at] == ' ' || name[at] == ')') &&
                                         !(x >= 2 && name[x - 1] == 't'))
      return n;
    if (x == 0) break;
  }
  return std::nullopt;
}

bool is_gpu_slice(std::string_view instance) {
  const std::string name = to_lower(instance);
  if (const auto n = azure(name); n && *n < 1) return true;
  if (starts(name, "g6f.") || starts(name, "gr6f.")) return true;  // AWS: an eighth to a half of an L4
  if (name.find("vgpu") != std::string::npos) return true;
  // Multi-instance slices: "1g.10gb", "mig-3g.40gb".
  for (size_t g = name.find("g."); g != std::string::npos; g = name.find("g.", g + 1))
    if (g > 0 && digit(name[g - 1]) && g + 2 < name.size() && digit(name[g + 2]) &&
        name.find("gb", g) != std::string::npos)
      return true;
  return false;
}

bool names_a_gpu(std::string_view instance) {
  const std::string name = to_lower(instance);
  for (const char* word : {"h100", "h200", "b200", "b300", "a100", "a10_", "a10g", "_t4", "l40", "v100", "p100",
                           "mi300", "rtx", "4090", "3090", "gpu"})
    if (name.find(word) != std::string::npos) return true;
  const std::string bare = starts(name, "standard_") ? name.substr(9) : name;
  for (const char* series : {"nc", "nd", "nv", "ng"})
    if (starts(bare, series) && bare.size() > 2 && digit(bare[2])) return true;
  for (const char* family : {"p2.", "p3.", "p3dn.", "p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-", "g4dn.", "g5.",
                             "g6.", "g6e.", "a2-", "a3-", "a4-", "g2-"})
    if (starts(name, family)) return true;
  return false;
}

}  // namespace shardfit::pricing
