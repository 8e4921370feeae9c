#include "pricing/inventory_offers.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

// Of a CPU node's memory, what the arenas of its ranks may take together; the rest is for the processes around them.
constexpr double kArenaShare = 0.75;

bool listed(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Why this user cannot submit to the partition; "" = can. What is not known of the user is taken as met.
std::string refused(const Partition& p, const UserContext& user) {
  if (!p.up) return "the partition is not up";
  if (!user.account.empty() && !p.allow_accounts.empty() && !listed(p.allow_accounts, user.account))
    return "account " + user.account + " is not among AllowAccounts";
  if (!user.account.empty() && listed(p.deny_accounts, user.account))
    return "account " + user.account + " is among DenyAccounts";
  if (!user.qos.empty() && !p.allow_qos.empty() && !listed(p.allow_qos, user.qos))
    return "QOS " + user.qos + " is not among AllowQos";
  if (!user.qos.empty() && listed(p.deny_qos, user.qos)) return "QOS " + user.qos + " is among DenyQos";
  if (!user.groups.empty() && !p.allow_groups.empty() &&
      std::none_of(user.groups.begin(), user.groups.end(), [&](const auto& g) { return listed(p.allow_groups, g); }))
    return "none of the user's groups is among AllowGroups";
  return "";
}

// Nodes that one offer stands for.
struct Group {
  const SiteNodes* entry = nullptr;
  std::string feature;  // by_feature's key, "" = the partition's own entry
  std::string gpu;      // key of the hardware table, or "cpu"
  std::int64_t gpus = 0;
  std::vector<const Node*> nodes;
};

class Maker {
 public:
  Maker(const Inventory& inventory, const Site& site, const Book& book, const regions::Catalogue& catalogue,
        const GpuTypes& types, const UserContext& user, std::int64_t now)
      : inventory_(inventory), site_(site), book_(book), catalogue_(catalogue), types_(types), user_(user), now_(now) {
    for (const auto& n : inventory.nodes) nodes_[n.name] = &n;
    cluster_ = inventory.cluster.empty() ? site.cluster : inventory.cluster;
  }

  ClusterOffers make() {
    for (const auto& p : inventory_.partitions) partition(p);
    for (const auto& [name, entry] : site_.partitions)
      if (std::none_of(inventory_.partitions.begin(), inventory_.partitions.end(),
                       [&](const auto& p) { return p.name == name; }))
        note(name, "", "the site file describes it and the cluster has no such partition", false);
    return std::move(out_);
  }

 private:
  void note(const std::string& partition, const std::string& feature, const std::string& reason, bool gives_offer,
            const std::string& node = "") {
    for (const auto& n : out_.notes)
      if (n.partition == partition && n.feature == feature && n.reason == reason) return;
    out_.notes.push_back({partition, feature, node, reason, gives_offer});
  }

  // The hardware key of a node's GPU type, or "" with a note.
  std::string resolve(const Partition& p, const SiteNodes& entry, const std::string& feature,
                      const std::string& slurm_type) {
    std::string name = slurm_type;
    if (const auto it = site_.gpu_names.find(slurm_type); it != site_.gpu_names.end()) name = it->second;
    else if (!entry.gpu.empty() && entry.gpu != "cpu") name = entry.gpu;
    if (name.empty()) {
      note(p.name, feature, "gres.conf names no GPU type: say \"gpu\" in the site file's partition", false);
      return "";
    }
    const auto found = types_.candidates(name);
    if (found.size() == 1) return found[0]->key;
    if (found.empty()) {
      std::vector<std::string> keys;
      for (const auto& t : types_.all()) keys.push_back(t.key);
      const auto near = nearest(name, keys);
      note(p.name, feature,
           "GPU \"" + name + "\" is not in the hardware table" + (near ? "; did you mean \"" + *near + "\"?" : ""),
           false);
      return "";
    }
    std::vector<std::string> keys;
    for (const auto* t : found) keys.push_back(t->key);
    note(p.name, feature,
         "GPU type \"" + name + "\" is ambiguous (" + join(keys, ", ") + "): map it in the site file's gpu_names",
         false);
    return "";
  }

  void partition(const Partition& p) {
    static const SitePartition nothing;
    const auto it = site_.partitions.find(p.name);
    const SitePartition& entry = it == site_.partitions.end() ? nothing : it->second;
    const bool described = it != site_.partitions.end();
    std::vector<Group> groups;
    for (const auto& name : p.nodes) {
      const auto n = nodes_.find(name);
      if (n == nodes_.end()) continue;
      const Node& node = *n->second;
      const SiteNodes* nodes = &entry;
      std::string feature;
      bool torn = false;
      for (const auto& [f, e] : entry.by_feature) {
        if (!listed(node.features, f)) continue;
        if (!feature.empty()) {
          note(p.name, f,
               "node " + name + " has both features " + feature + " and " + f + ", so where it stands is not known",
               false, name);
          torn = true;
          break;
        }
        feature = f;
        nodes = &e;
      }
      if (torn) continue;
      if (!entry.by_feature.empty() && feature.empty()) {
        note(p.name, "",
             "node " + name + " has none of the features the site file tells apart, so it cannot be asked for alone",
             false, name);
        continue;
      }
      bool any_gpu = false;
      for (const auto& g : node.gpus) {
        if (g.count <= 0) continue;
        any_gpu = true;
        if (nodes->gpu == "cpu") continue;
        const std::string key = resolve(p, *nodes, feature, g.type);
        if (!key.empty()) put(groups, *nodes, feature, key, g.count, node);
      }
      if (nodes->gpu == "cpu") {
        const std::int64_t cores = node.cores ? node.cores : node.cpus;
        if (!nodes->gpus_per_node) note(p.name, feature, "gpus_per_node is not stated: one rank a core is taken", true);
        put(groups, *nodes, feature, "cpu",
            std::max<std::int64_t>(1, std::min(nodes->gpus_per_node.value_or(cores), cores)), node);
      } else if (!any_gpu) {
        note(p.name, feature,
             described && !nodes->gpu.empty()
                 ? "its nodes have no GPUs, though the site file says " + nodes->gpu
                 : "its nodes have no GPUs; \"gpu\": \"cpu\" in the site file would offer their cores",
             false);
      }
    }
    if (p.nodes.empty()) note(p.name, "", "it has no nodes", false);
    if (!described && !groups.empty())
      note(p.name, "", "the site file does not describe it: no region, no price", true);
    for (const auto& g : groups) offer(p, g, groups);
  }

  static void put(std::vector<Group>& groups, const SiteNodes& entry, const std::string& feature,
                  const std::string& gpu, std::int64_t count, const Node& node) {
    for (auto& g : groups)
      if (g.feature == feature && g.gpu == gpu && g.gpus == count) {
        g.nodes.push_back(&node);
        return;
      }
    groups.push_back({&entry, feature, gpu, count, {&node}});
  }

  void offer(const Partition& p, const Group& g, const std::vector<Group>& groups) {
    const SiteNodes& e = *g.entry;
    Offer o;
    o.from_slurm = true;
    o.cluster = cluster_;
    o.partition = p.name;
    o.id = (cluster_.empty() ? "" : cluster_ + "/") + p.name + (g.feature.empty() ? "" : "/" + g.feature);
    const auto alike = [&](bool by_gpu) {
      return std::count_if(groups.begin(), groups.end(),
                           [&](const Group& h) { return h.feature == g.feature && (!by_gpu || h.gpu == g.gpu); });
    };
    if (alike(false) > 1) o.id += "/" + g.gpu + (alike(true) > 1 ? "x" + std::to_string(g.gpus) : "");
    o.gpu = g.gpu;
    o.gpus_per_node = g.gpus;
    if (!g.feature.empty()) o.features = {g.feature};

    std::vector<const Node*> usable;
    std::map<std::string, int> states;
    for (const auto* n : g.nodes) {
      if (n->state.empty()) usable.push_back(n);
      else ++states[n->state];
    }
    o.unavailable = refused(p, user_);
    if (usable.empty() && o.unavailable.empty()) {
      std::vector<std::string> words;
      for (const auto& [state, count] : states) words.push_back(std::to_string(count) + " " + state);
      o.unavailable = "no node can take jobs (" + join(words, ", ") + ")";
    } else if (!states.empty()) {
      std::vector<std::string> words;
      for (const auto& [state, count] : states) words.push_back(std::to_string(count) + " " + state);
      note(p.name, g.feature, "of " + std::to_string(g.nodes.size()) + " nodes not usable now: " + join(words, ", "),
           true);
    }
    if (user_.account.empty() && (!p.allow_accounts.empty() || !p.deny_accounts.empty()))
      note(p.name, g.feature, "limited to some accounts; yours is not known, so it is taken as allowed", true);
    const auto& counted = usable.empty() ? g.nodes : usable;
    o.max_nodes = static_cast<std::int64_t>(counted.size());
    if (p.max_nodes && *p.max_nodes > 0) o.max_nodes = std::min(o.max_nodes, *p.max_nodes);
    if (e.max_nodes) o.max_nodes = std::min(o.max_nodes, *e.max_nodes);
    o.min_gpus = std::min(e.min_gpus.value_or(1), o.gpus_per_node * o.max_nodes);
    if (p.max_seconds && *p.max_seconds > 0) o.max_seconds = p.max_seconds;

    // The least of what the nodes have: the offer must hold on any of them.
    std::int64_t cpus = counted[0]->cpus, cores = counted[0]->cores ? counted[0]->cores : counted[0]->cpus,
                 memory = counted[0]->memory_mib;
    for (const auto* n : counted)
      cpus = std::min(cpus, n->cpus), cores = std::min(cores, n->cores ? n->cores : n->cpus),
      memory = std::min(memory, n->memory_mib);
    o.host = e.host;
    if (!o.host.vcpus) o.host.vcpus = static_cast<double>(cpus);
    if (!o.host.ram_gib) o.host.ram_gib = static_cast<double>(memory) / 1024.0;
    if (!o.host.cores_per_gpu) o.host.cores_per_gpu = static_cast<double>(cores) / static_cast<double>(g.gpus);
    if (g.gpu == "cpu")
      o.device_memory_gib =
          e.device_memory_gib ? *e.device_memory_gib : kArenaShare * *o.host.ram_gib / static_cast<double>(g.gpus);
    o.interconnect = e.interconnect;
    o.billing_increment_seconds = e.billing_increment_seconds;
    o.start_seconds = e.start_seconds;
    o.queue_seconds = e.queue_seconds;
    o.mtti_hours = e.mtti_hours;
    o.egress = e.egress;
    o.storage = e.storage;
    o.energy = e.energy;

    o.region = e.region;
    if (const regions::Record* r = e.region.empty() ? nullptr : catalogue_.find(e.region)) {
      o.region = r->id;
      o.provider = r->provider;
    } else if (e.region.empty()) {
      note(p.name, g.feature, "no region is stated, so no pin is satisfied", true);
    } else {
      note(p.name, g.feature,
           "region \"" + e.region + "\" is not in the catalogue, so no pin is satisfied; describe it in regions.d",
           true);
    }
    price(p, g, o);
    out_.offers.push_back(std::move(o));
  }

  void price(const Partition& p, const Group& g, Offer& o) {
    const SiteNodes& e = *g.entry;
    if (!e.price) {
      if (!e.energy) note(p.name, g.feature, "no price is stated", true);
      return;
    }
    if (e.price->stated) {
      o.price = *e.price->stated;
      if (o.price->as_of.empty()) o.price->as_of = format_date(now_);  // the site file says what it costs today
      return;
    }
    const std::string what = e.price->provider + " " + e.price->instance;
    const auto all =
        book_.find({.provider = e.price->provider, .instance = e.price->instance, .region = "", .gpu = ""});
    const PriceRow* row = nullptr;
    for (const auto* r : all) {
      const regions::Record* record = catalogue_.find(r->provider, r->region);
      if ((record && record->id == o.region) || regions::provider_slug(r->provider) + "/" + r->region == o.region)
        row = r;
    }
    if (all.empty())
      return note(p.name, g.feature, "the price book has no row " + what + "; shardfit prices list shows what it has",
                  true);
    if (!row)
      return note(p.name, g.feature,
                  "the price book has " + what + " in " + all[0]->region + (all.size() > 1 ? " and elsewhere" : "") +
                      ", not in " + (o.region.empty() ? "an unknown region" : o.region),
                  true);
    if (row->verdict == Verdict::kRejected)
      return note(p.name, g.feature,
                  "the price of " + what + " is rejected (" + join(row->rules, ", ") + "): " + row->why, true);
    const auto& amount = e.price->kind == "spot" ? row->spot_per_hour : row->on_demand_per_hour;
    if (!amount) return note(p.name, g.feature, "the price book knows no " + e.price->kind + " price of " + what, true);
    Price price;
    price.amount = *amount;
    price.currency = row->currency;
    price.kind = e.price->kind;
    price.as_of = row->as_of;
    price.source = row->source;
    // Marks about the seller's host say nothing of this node, whose host Slurm knows.
    for (const auto& rule : row->rules)
      if (rule != "stale" && rule != "capacity_unknown" && rule != "zero_is_unknown" &&
          !(rule == "host_part_missing" && regions::provider_slug(row->provider) == "vast"))
        price.flags.push_back(rule);
    if (row->gpu_count && *row->gpu_count != static_cast<double>(o.gpus_per_node) && g.gpu != "cpu") {
      price.amount = *amount / *row->gpu_count * static_cast<double>(o.gpus_per_node);
      note(p.name, g.feature,
           fmt::format("{} has {:g} GPUs and the node {}: its price is taken by the GPU", what, *row->gpu_count,
                       o.gpus_per_node),
           true);
    }
    o.price = price;
    if (!o.egress && row->egress_per_gb) o.egress = UnitPrice{*row->egress_per_gb, row->currency, "GB"};
  }

  const Inventory& inventory_;
  const Site& site_;
  const Book& book_;
  const regions::Catalogue& catalogue_;
  const GpuTypes& types_;
  const UserContext& user_;
  std::int64_t now_;
  std::string cluster_;
  std::map<std::string, const Node*> nodes_;
  ClusterOffers out_;
};

}  // namespace

ClusterOffers offers_from(const Inventory& inventory, const Site& site, const Book& book,
                          const regions::Catalogue& catalogue, const GpuTypes& types, const UserContext& user,
                          std::int64_t now) {
  return Maker(inventory, site, book, catalogue, types, user, now).make();
}

}  // namespace shardfit::pricing
