// One row of the price book: one machine type of one seller in one region, with its verdict.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardfit::pricing {

enum class Verdict { kAccepted, kFlagged, kRejected };
const char* to_string(Verdict verdict);

struct PriceRow {
  std::string provider, instance, gpu;  // gpu: as the seller names it
  std::optional<double> gpu_count, gpu_memory_gb, vcpus, ram_gib, local_nvme_gb;
  std::string region, country, currency;                    // region: the seller's own name
  std::optional<double> on_demand_per_hour, spot_per_hour;  // of the whole machine
  std::optional<double> egress_per_gb;
  std::string as_of, source, quality, note;
  std::string imported_at;  // RFC 3339; "" = shipped with the product

  Verdict verdict = Verdict::kAccepted;
  std::vector<std::string> rules;  // names of the validators that spoke
  std::string why;
};

// Provider, region, instance, GPU and count: rows of one key are one thing at different times.
std::string key_of(const PriceRow& row);

}  // namespace shardfit::pricing
