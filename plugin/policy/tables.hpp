// The tables that job_submit reads (plugin/lua/shardfit_policy.lua): where each partition stands, which pins each
// account, user, QOS and partition has, and what each region satisfies. Written as Lua, because slurmctld has no other
// reader at hand.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "pricing/site.hpp"
#include "regions/catalogue.hpp"

namespace shardfit::policy {

// The whole file: a first line "-- shardfit policy 1 DIGEST" (SHA-256 of what follows it), then `return {...}`. The
// same site and catalogue give the same bytes. Throws Error for a pin that cannot be read, naming its place in the site
// file.
std::string policy_tables(const pricing::Site& site, const regions::Catalogue& catalogue);

// <state_dir>/policy.lua
std::string tables_file(const pricing::Site& site);

// What an administrator should know before publishing: partitions without a known region, accounts that can run
// nowhere.
std::vector<std::string> policy_warnings(const pricing::Site& site, const regions::Catalogue& catalogue);

// Canonical atoms, aliases expanded, of policy that binds this submitter: the account's pins (policy.default where the
// account has no entry), the user's, the QOS's. Partition pins are apart: they bind only jobs of that partition.
std::vector<std::string> policy_pins(const pricing::Site& site, const std::string& account, const std::string& user,
                                     const std::string& qos);

}  // namespace shardfit::policy
