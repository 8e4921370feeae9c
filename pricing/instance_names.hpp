// What a machine type's name says about its GPUs: Azure, AWS, OCI, GCP, Lambda, Vast, Nebius, Scaleway, Hyperstack and
// Shadeform spell the count; some names are known to be slices of a GPU.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace shardfit::pricing {

// GPUs of the machine as its name states them; nullopt where it does not.
std::optional<double> gpus_by_name(std::string_view provider, std::string_view instance);
// The name is of a part of a GPU ("Standard_NV6ads_A10_v5", "g6f.large", "1g.10gb").
bool is_gpu_slice(std::string_view instance);
// The name is of a machine with a GPU, whatever the feed's label says ("Standard_NC8ads_A10_v4").
bool names_a_gpu(std::string_view instance);

}  // namespace shardfit::pricing
