// Offers of a Slurm cluster: inventory x site file x price book x region catalogue.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "pricing/book.hpp"
#include "pricing/gpu_types.hpp"
#include "pricing/inventory.hpp"
#include "pricing/offers.hpp"
#include "pricing/site.hpp"
#include "regions/catalogue.hpp"

namespace shardfit::pricing {

struct OfferNote {
  std::string partition, feature, node;  // what it is about; "" = all of it
  std::string reason;                    // "GPU type \"h100\" is ambiguous: ...", "no region: ...", "no price: ..."
  bool gives_offer = false;              // true: an offer came out all the same, something of it being unknown
};

struct ClusterOffers {
  std::vector<Offer> offers;  // from_slurm; id "<cluster>/<partition>[/<feature or GPU>]"
  std::vector<OfferNote> notes;
};

// Nodes of a partition that are alike (GPU type and count, memory, CPUs, site entry) make one offer. A partition the
// user may not use gives an offer whose `unavailable` says why.
ClusterOffers offers_from(const Inventory& inventory, const Site& site, const Book& book,
                          const regions::Catalogue& catalogue, const GpuTypes& types, const UserContext& user,
                          std::int64_t now);

}  // namespace shardfit::pricing
