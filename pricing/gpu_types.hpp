// GPU names as feeds and Slurm spell them, resolved to keys of the hardware table. Pricing knows no hardware of its
// own: whoever calls hands the table in (selector/hardware), or a JSON list of the same shape.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::pricing {

struct GpuType {
  std::string key;                   // "h100_sxm_80gb"
  std::vector<std::string> names;    // name, aliases and Slurm types
  std::optional<double> memory_mib;  // as nvidia-smi shows it
};

class GpuTypes {
 public:
  GpuTypes() = default;
  explicit GpuTypes(std::vector<GpuType> types);
  static GpuTypes parse(const nlohmann::json& hardware_table);  // the list of selector/hardware/data/hardware.json

  const std::vector<GpuType>& all() const { return types_; }
  bool empty() const { return types_.empty(); }
  const GpuType* find(std::string_view key) const;
  // Every type the name may mean: "h100" gives four, "A100-80GB" two, "A100 SXM 80GB" one, "tpu-v6e-8" none.
  std::vector<const GpuType*> candidates(std::string_view name) const;
  // Candidates narrowed by the memory of one GPU, GB as sellers print it (80 for 81559 MiB).
  std::vector<const GpuType*> candidates(std::string_view name, std::optional<double> memory_gb) const;

 private:
  struct Parts;  // model, memory and form of a name
  struct Index;  // the types' names, taken apart once
  std::vector<GpuType> types_;
  std::shared_ptr<const Index> index_;
};

}  // namespace shardfit::pricing
