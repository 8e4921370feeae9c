#include "pricing/site.hpp"

#include <cstdlib>
#include <filesystem>

#include "pricing/money.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/pins.hpp"

namespace shardfit::pricing {
namespace {

constexpr const char* kDefaultFile = "/etc/shardfit/shardfit.conf";

std::string currency(ObjectReader& r, std::string_view key) {
  const std::string c = r.required_string(key);
  if (!is_currency_code(c))
    throw Error("bad_currency", r.at(key), "\"" + c + "\" is not a currency code",
                "write three capital letters as EUR, USD, CHF (ISO 4217)");
  return c;
}

double duration(const Json& v, const std::string& where) {
  if (v.is_number() && v.get<double>() >= 0) return v.get<double>();
  if (!v.is_string())
    throw Error("wrong_type", where, "a duration is needed, not " + brief(v), "write it as \"7d\" or \"24h\"");
  return parse_duration(v.get<std::string>(), where);
}

SitePrice site_price(const Json& object, const std::string& where) {
  ObjectReader r(object, where);
  SitePrice p;
  if (r.has("amount")) {
    Price stated;
    stated.amount = r.required_number("amount", 0, 1e12);
    stated.currency = currency(r, "currency");
    stated.per = r.one_of("per", {"node_hour", "gpu_hour"}).value_or("node_hour");
    stated.kind = r.one_of("kind", {"on_demand", "spot", "reserved"}).value_or("on_demand");
    stated.as_of = r.string("as_of").value_or("");
    stated.source = r.string("source").value_or("site file");
    p.kind = stated.kind;
    p.stated = stated;
  } else {
    if (!r.has("provider") && !r.has("instance"))
      throw Error("missing_key", where, "neither a row of the price book nor an amount is named",
                  "write {\"provider\", \"instance\"} or {\"amount\", \"currency\", \"per\"}");
    p.provider = r.required_string("provider");
    p.instance = r.required_string("instance");
    p.kind = r.one_of("kind", {"on_demand", "spot"}).value_or("on_demand");
  }
  r.finish();
  return p;
}

void read_nodes(SiteNodes& n, ObjectReader& r) {
  // The offer's own reader judges what is shaped as in an offer.
  Json shaped = {{"id", "site"}, {"gpu", "site"}};
  bool any = false;
  for (const char* key : {"host", "interconnect", "energy", "device_memory_gib", "billing_increment_seconds",
                          "start_seconds", "queue_seconds", "mtti_hours", "egress", "storage"})
    if (const Json* v = r.get(key)) shaped[key] = *v, any = true;
  if (any) {
    const Offer o = parse_offer(shaped, r.where());
    n.host = o.host;
    n.interconnect = o.interconnect;
    n.energy = o.energy;
    n.device_memory_gib = o.device_memory_gib;
    n.billing_increment_seconds = o.billing_increment_seconds;
    n.start_seconds = o.start_seconds;
    n.queue_seconds = o.queue_seconds;
    n.mtti_hours = o.mtti_hours;
    n.egress = o.egress;
    n.storage = o.storage;
  }
  n.region = r.string("region").value_or("");
  n.gpu = r.string("gpu").value_or("");
  if (const Json* v = r.get("price")) n.price = site_price(*v, r.at("price"));
  n.gpus_per_node = r.integer("gpus_per_node", 1, 4096);
  n.min_gpus = r.integer("min_gpus", 1, 4096);
  n.max_nodes = r.integer("max_nodes", 1, 1000000);
}

// What a feature's entry does not say, the partition's entry says.
SiteNodes inherited(SiteNodes n, const SiteNodes& from) {
  const auto take = [](auto& to, const auto& have) {
    if (!to) to = have;
  };
  if (n.region.empty()) n.region = from.region;
  if (n.gpu.empty()) n.gpu = from.gpu;
  take(n.price, from.price);
  take(n.energy, from.energy);
  take(n.gpus_per_node, from.gpus_per_node);
  take(n.min_gpus, from.min_gpus);
  take(n.max_nodes, from.max_nodes);
  take(n.device_memory_gib, from.device_memory_gib);
  take(n.billing_increment_seconds, from.billing_increment_seconds);
  take(n.start_seconds, from.start_seconds);
  take(n.queue_seconds, from.queue_seconds);
  take(n.mtti_hours, from.mtti_hours);
  take(n.egress, from.egress);
  take(n.storage, from.storage);
  take(n.host.vcpus, from.host.vcpus);
  take(n.host.ram_gib, from.host.ram_gib);
  take(n.host.ddr_gbs, from.host.ddr_gbs);
  take(n.host.pcie_gbs, from.host.pcie_gbs);
  take(n.host.optimizer_gparams_per_s, from.host.optimizer_gparams_per_s);
  take(n.host.cores_per_gpu, from.host.cores_per_gpu);
  take(n.host.core_binding, from.host.core_binding);
  take(n.host.nvme, from.host.nvme);
  take(n.interconnect.gpu_link_gbs, from.interconnect.gpu_link_gbs);
  take(n.interconnect.node_gbs, from.interconnect.node_gbs);
  return n;
}

std::vector<std::string> pins(const Json& object, const std::string& where) {
  ObjectReader r(object, where);
  const auto list = r.strings("pins").value_or(std::vector<std::string>{});
  for (size_t i = 0; i < list.size(); ++i) regions::parse_pins(list[i], r.at("pins") + "/" + std::to_string(i));
  r.finish();
  return list;
}

std::map<std::string, std::vector<std::string>> pins_by_name(ObjectReader& r, std::string_view key) {
  std::map<std::string, std::vector<std::string>> out;
  const Json* v = r.get(key);
  if (!v) return out;
  if (!v->is_object()) throw Error("wrong_type", r.at(key), "an object of names is needed, not " + brief(*v));
  for (const auto& [name, entry] : v->items()) out[name] = pins(entry, r.at(key) + "/" + name);
  return out;
}

std::map<std::string, Budget> budgets(ObjectReader& r, std::string_view key) {
  std::map<std::string, Budget> out;
  const Json* v = r.get(key);
  if (!v) return out;
  if (!v->is_object()) throw Error("wrong_type", r.at(key), "an object of names is needed, not " + brief(*v));
  for (const auto& [name, entry] : v->items()) {
    ObjectReader b(entry, r.at(key) + "/" + name);
    Budget budget;
    budget.amount = b.required_number("amount", 0, 9.2e9);
    budget.currency = currency(b, "currency");
    budget.per = b.one_of("per", {"month", "year"}).value_or("month");
    budget.warn = b.number("warn", 0, 10).value_or(0.8);
    budget.refuse = b.number("refuse", 0, 10).value_or(1.0);
    b.finish();
    out[name] = budget;
  }
  return out;
}

}  // namespace

std::string site_file() {
  const char* named = std::getenv("SHARDFIT_CONF");
  return named && *named ? named : kDefaultFile;
}

Site read_site() {
  const std::string file = site_file();
  std::error_code ec;
  if (file == kDefaultFile && !std::filesystem::exists(file, ec)) return {};
  return read_site(file);
}

Site read_site(const std::string& file) { return parse_site(read_json_file(file), file); }

Site parse_site(const nlohmann::json& object, const std::string& file) {
  try {
    ObjectReader r(object, "");
    Site s;
    s.file = file;
    s.cluster = r.string("cluster").value_or("");
    if (r.has("currency")) s.currency = currency(r, "currency");
    s.state_dir = r.string("state_dir").value_or(s.state_dir);
    s.spool = r.string("spool").value_or(s.spool);
    s.regions_dir = r.string("regions_dir").value_or(s.regions_dir);
    s.plan_dir = r.string("plan_dir").value_or("");
    s.decide_timeout_seconds = r.number("decide_timeout_seconds", 0.1, 600).value_or(3);
    if (const Json* v = r.get("price_max_age")) {
      ObjectReader a(*v, r.at("price_max_age"));
      if (const Json* d = a.get("on_demand")) s.price_max_age.on_demand_seconds = duration(*d, a.at("on_demand"));
      if (const Json* d = a.get("spot")) s.price_max_age.spot_seconds = duration(*d, a.at("spot"));
      a.finish();
    }
    if (const Json* v = r.get("partitions")) {
      if (!v->is_object())
        throw Error("wrong_type", "/partitions", "an object of partitions is needed, not " + brief(*v));
      for (const auto& [name, entry] : v->items()) {
        ObjectReader p(entry, "/partitions/" + name);
        SitePartition partition;
        read_nodes(partition, p);
        if (const Json* f = p.get("by_feature")) {
          if (!f->is_object())
            throw Error("wrong_type", p.at("by_feature"), "an object of features is needed, not " + brief(*f));
          for (const auto& [feature, nodes] : f->items()) {
            ObjectReader fr(nodes, p.at("by_feature") + "/" + feature);
            SiteNodes n;
            read_nodes(n, fr);
            fr.finish();
            partition.by_feature.emplace_back(feature, inherited(std::move(n), partition));
          }
        }
        p.finish();
        s.partitions[name] = std::move(partition);
      }
    }
    if (const Json* v = r.get("gpu_names")) {
      if (!v->is_object()) throw Error("wrong_type", "/gpu_names", "an object of names is needed, not " + brief(*v));
      for (const auto& [name, key] : v->items()) {
        if (!key.is_string())
          throw Error("wrong_type", "/gpu_names/" + name, "a key of the hardware table is needed, not " + brief(key));
        s.gpu_names[name] = key.get<std::string>();
      }
    }
    if (const Json* v = r.get("policy")) {
      ObjectReader p(*v, "/policy");
      if (const Json* d = p.get("default")) s.policy.default_pins = pins(*d, "/policy/default");
      s.policy.accounts = pins_by_name(p, "accounts");
      s.policy.users = pins_by_name(p, "users");
      s.policy.qos = pins_by_name(p, "qos");
      s.policy.partitions = pins_by_name(p, "partitions");
      p.finish();
    }
    if (const Json* v = r.get("budgets")) {
      ObjectReader b(*v, "/budgets");
      s.account_budgets = budgets(b, "accounts");
      s.user_budgets = budgets(b, "users");
      b.finish();
    }
    r.finish();
    return s;
  } catch (Error& e) {
    throw e.in_file(file);
  }
}

}  // namespace shardfit::pricing
