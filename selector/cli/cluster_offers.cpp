#include "selector/cli/cluster_offers.hpp"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "plugin/inventory/slurm_inventory.hpp"
#include "pricing/book.hpp"
#include "pricing/gpu_types.hpp"
#include "pricing/inventory_offers.hpp"
#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::cli {

pricing::GpuTypes gpu_types() {
  std::vector<pricing::GpuType> types;
  for (const auto& d : hardware::devices()) {
    pricing::GpuType t{.key = d.key, .names = {d.name}, .memory_mib = d.memory_mib};
    t.names.insert(t.names.end(), d.aliases.begin(), d.aliases.end());
    t.names.insert(t.names.end(), d.slurm_types.begin(), d.slurm_types.end());
    types.push_back(std::move(t));
  }
  return pricing::GpuTypes(std::move(types));
}

pricing::UserContext this_user() {
  pricing::UserContext user;
  if (const passwd* p = ::getpwuid(::getuid())) user.user = p->pw_name;
  if (const char* account = std::getenv("SBATCH_ACCOUNT")) user.account = account;
  if (const char* qos = std::getenv("SBATCH_QOS")) user.qos = qos;
  return user;
}

std::vector<pricing::Offer> cluster_offers(const pricing::Site& site, const regions::Catalogue& catalogue,
                                           std::int64_t now) {
  pricing::Inventory inventory;
  try {
    inventory = inventory::slurm_inventory({.cluster = site.cluster});
  } catch (const Error& e) {
    throw Error(e.code, e.where, e.message,
                "give offers with --offers FILE, or run where Slurm's commands reach the cluster", e.exit_status);
  }
  const auto types = gpu_types();
  const auto book = pricing::Book::open(site.state_dir, &types);
  auto made = pricing::offers_from(inventory, site, book, catalogue, types, this_user(), now);
  if (made.offers.empty()) {
    std::vector<std::string> why;
    for (const auto& note : made.notes)
      if (why.size() < 3) why.push_back((note.partition.empty() ? "" : note.partition + ": ") + note.reason);
    throw Error("no_offers", "",
                "the cluster" + (inventory.cluster.empty() ? "" : " " + inventory.cluster) +
                    " offers nothing that can be priced" + (why.empty() ? "" : " (" + join(why, "; ") + ")"),
                "describe its partitions in " +
                    (site.file.empty() ? std::string("/etc/shardfit/shardfit.conf") : site.file) +
                    ", or give --offers FILE",
                kExitFailed);
  }
  return made.offers;
}

}  // namespace shardfit::cli
