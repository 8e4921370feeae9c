// What the Slurm cluster that this machine belongs to offers now.
#pragma once
#include <cstdint>
#include <vector>

#include "pricing/gpu_types.hpp"
#include "pricing/inventory.hpp"
#include "pricing/offers.hpp"
#include "pricing/site.hpp"
#include "regions/catalogue.hpp"

namespace shardfit::cli {

// The hardware table as pricing wants to know it.
pricing::GpuTypes gpu_types();
// Whoever runs this command, with the account and QOS that sbatch would take from the environment.
pricing::UserContext this_user();

// Inventory x site file x price book x catalogue. Throws Error (exit status 1) where Slurm cannot be reached, with the
// remedy
// --offers FILE; and where nothing of the cluster can be offered, with the reasons.
std::vector<pricing::Offer> cluster_offers(const pricing::Site& site, const regions::Catalogue& catalogue,
                                           std::int64_t now);

}  // namespace shardfit::cli
