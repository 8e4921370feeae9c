#include "pricing/offers.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

// A quantity whose zero would mean "unknown": it is refused rather than believed.
std::optional<double> positive(ObjectReader& r, std::string_view key) {
  const auto v = r.number(key, 0);
  if (v && *v == 0)
    throw Error("out_of_range", r.at(key), "0 is out of range", "it must be above 0; leave it out if it is unknown");
  return v;
}

std::string currency(ObjectReader& r) {
  const std::string c = r.required_string("currency");
  const bool ok = c.size() == 3 && std::all_of(c.begin(), c.end(), [](unsigned char x) { return std::isupper(x); });
  if (!ok)
    throw Error("bad_currency", r.at("currency"), "\"" + c + "\" is not a currency code",
                "write three capital letters as EUR, USD, CHF (ISO 4217)");
  return c;
}

std::string point_in_time(ObjectReader& r, std::string_view key) {
  const auto v = r.string(key);
  if (v && !v->empty() && !parse_time(*v))
    throw Error("bad_time", r.at(key), "time \"" + *v + "\" cannot be read",
                "write it as 2026-08-22 or 2026-08-22T10:00:00Z");
  return v.value_or("");
}

std::optional<UnitPrice> unit_price(ObjectReader& parent, std::string_view key, const std::string& per) {
  const Json* v = parent.get(key);
  if (!v) return std::nullopt;
  ObjectReader r(*v, parent.at(key));
  UnitPrice p;
  p.amount = r.required_number("amount", 0, 1e12);
  p.currency = currency(r);
  p.per = r.one_of("per", {per}).value_or(per);
  r.finish();
  return p;
}

Price price(const Json& object, const std::string& where) {
  ObjectReader r(object, where);
  Price p;
  p.amount = r.required_number("amount", 0, 1e12);
  p.currency = currency(r);
  p.per = r.one_of("per", {"node_hour", "gpu_hour"}).value_or("node_hour");
  p.kind = r.one_of("kind", {"on_demand", "spot", "reserved"}).value_or("on_demand");
  p.as_of = point_in_time(r, "as_of");
  p.source = r.string("source").value_or("");
  p.flags = r.strings("flags").value_or(std::vector<std::string>{});
  r.finish();
  return p;
}

Energy energy(const Json& object, const std::string& where) {
  ObjectReader r(object, where);
  Energy e;
  e.node_watts = positive(r, "node_watts");
  e.pue = r.number("pue", 1, 10);
  e.tariff = unit_price(r, "tariff", "kWh");
  e.depreciation = unit_price(r, "depreciation", "node_hour");
  r.finish();
  return e;
}

void put(nlohmann::ordered_json& to, const char* key, const std::optional<double>& value) {
  if (value) to[key] = *value;
}

void put(nlohmann::ordered_json& to, const char* key, const std::optional<UnitPrice>& value) {
  if (value) to[key] = {{"amount", value->amount}, {"currency", value->currency}, {"per", value->per}};
}

void put(nlohmann::ordered_json& to, const char* key, const std::string& value) {
  if (!value.empty()) to[key] = value;
}

}  // namespace

Host parse_host(const nlohmann::json& object, const std::string& where) {
  ObjectReader r(object, where);
  Host h;
  h.vcpus = positive(r, "vcpus");
  h.ram_gib = positive(r, "ram_gib");
  h.ddr_gbs = positive(r, "ddr_gbs");
  h.pcie_gbs = positive(r, "pcie_gbs");
  h.optimizer_gparams_per_s = positive(r, "optimizer_gparams_per_s");
  h.cores_per_gpu = positive(r, "cores_per_gpu");
  h.core_binding = r.boolean("core_binding");
  if (const Json* v = r.get("nvme")) {
    ObjectReader n(*v, r.at("nvme"));
    Nvme nvme;
    nvme.drives = n.number("drives", 0);  // 0 = known to have none
    nvme.capacity_gb = n.number("capacity_gb", 0);
    nvme.read_gbs = positive(n, "read_gbs");
    nvme.write_gbs = positive(n, "write_gbs");
    n.finish();
    h.nvme = nvme;
  }
  r.finish();
  return h;
}

Interconnect parse_interconnect(const nlohmann::json& object, const std::string& where) {
  ObjectReader r(object, where);
  Interconnect i;
  i.gpu_link_gbs = positive(r, "gpu_link_gbs");
  i.node_gbs = positive(r, "node_gbs");
  r.finish();
  return i;
}

Offer parse_offer(const nlohmann::json& object, const std::string& where) {
  ObjectReader r(object, where);
  Offer o;
  o.id = r.required_string("id");
  if (o.id.empty()) throw Error("out_of_range", r.at("id"), "is empty", "give every offer a name of its own");
  o.provider = r.string("provider").value_or("");
  o.region = r.string("region").value_or("");
  o.cluster = r.string("cluster").value_or("");
  o.partition = r.string("partition").value_or("");
  o.gpu = r.required_string("gpu");
  o.gpus_per_node = r.integer("gpus_per_node", 1, 4096).value_or(1);
  o.max_nodes = r.integer("max_nodes", 1, 1000000).value_or(1);
  o.min_gpus = r.integer("min_gpus", 1, o.gpus_per_node * o.max_nodes).value_or(1);
  o.device_memory_gib = positive(r, "device_memory_gib");
  if (const Json* v = r.get("host")) o.host = parse_host(*v, r.at("host"));
  if (const Json* v = r.get("interconnect")) o.interconnect = parse_interconnect(*v, r.at("interconnect"));
  if (const Json* v = r.get("price")) o.price = price(*v, r.at("price"));
  o.billing_increment_seconds = r.number("billing_increment_seconds", 0, 1e9);
  o.start_seconds = r.number("start_seconds", 0, 1e9);
  o.queue_seconds = r.number("queue_seconds", 0, 1e9);
  o.mtti_hours = positive(r, "mtti_hours");
  o.egress = unit_price(r, "egress", "GB");
  o.storage = unit_price(r, "storage", "GB_month");
  if (const Json* v = r.get("energy")) o.energy = energy(*v, r.at("energy"));
  if (const Json* v = r.get("plans")) {
    if (!v->is_array()) throw Error("wrong_type", r.at("plans"), "a list of plans is needed, not " + brief(*v));
    for (const auto& plan : *v) {
      if (!plan.is_object())
        throw Error("wrong_type", r.at("plans") + "/" + std::to_string(o.plans.size()),
                    "a plan object is needed, not " + brief(plan));
      o.plans.push_back(plan);
    }
  }
  o.features = r.strings("features").value_or(std::vector<std::string>{});
  o.max_seconds = positive(r, "max_seconds");
  o.unavailable = r.string("unavailable").value_or("");
  r.finish();
  return o;
}

std::vector<Offer> read_offers(const std::string& file) {
  const Json root = read_json_file(file);
  try {
    const Json* list = &root;
    std::string where;
    if (root.is_object()) {
      ObjectReader r(root, "");
      list = &r.required("offers");
      for (const char* key : {"cluster", "now", "notes"}) r.ignore(key);  // as `shardfit offers --json` prints it
      r.finish();
      where = "/offers";
    }
    if (!list->is_array()) throw Error("wrong_type", where, "a list of offers is needed, not " + brief(*list));
    std::vector<Offer> out;
    std::set<std::string> ids;
    for (const auto& item : *list) {
      const std::string at = where + "/" + std::to_string(out.size());
      out.push_back(parse_offer(item, at));
      if (!ids.insert(out.back().id).second)
        throw Error("duplicate", at + "/id", "offer id \"" + out.back().id + "\" occurs twice",
                    "give every offer an id of its own");
    }
    return out;
  } catch (Error& e) {
    throw e.in_file(file);
  }
}

nlohmann::ordered_json to_json(const Offer& o) {
  nlohmann::ordered_json j{{"id", o.id}};
  put(j, "provider", o.provider);
  put(j, "region", o.region);
  put(j, "cluster", o.cluster);
  put(j, "partition", o.partition);
  j["gpu"] = o.gpu;
  j["gpus_per_node"] = o.gpus_per_node;
  j["max_nodes"] = o.max_nodes;
  j["min_gpus"] = o.min_gpus;
  put(j, "device_memory_gib", o.device_memory_gib);
  nlohmann::ordered_json host = nlohmann::ordered_json::object();
  put(host, "vcpus", o.host.vcpus);
  put(host, "ram_gib", o.host.ram_gib);
  put(host, "ddr_gbs", o.host.ddr_gbs);
  put(host, "pcie_gbs", o.host.pcie_gbs);
  put(host, "optimizer_gparams_per_s", o.host.optimizer_gparams_per_s);
  put(host, "cores_per_gpu", o.host.cores_per_gpu);
  if (o.host.core_binding) host["core_binding"] = *o.host.core_binding;
  if (o.host.nvme) {
    nlohmann::ordered_json n = nlohmann::ordered_json::object();
    put(n, "drives", o.host.nvme->drives);
    put(n, "capacity_gb", o.host.nvme->capacity_gb);
    put(n, "read_gbs", o.host.nvme->read_gbs);
    put(n, "write_gbs", o.host.nvme->write_gbs);
    host["nvme"] = n;
  }
  if (!host.empty()) j["host"] = host;
  nlohmann::ordered_json link = nlohmann::ordered_json::object();
  put(link, "gpu_link_gbs", o.interconnect.gpu_link_gbs);
  put(link, "node_gbs", o.interconnect.node_gbs);
  if (!link.empty()) j["interconnect"] = link;
  if (o.price) {
    auto& p = j["price"] = {
        {"amount", o.price->amount}, {"currency", o.price->currency}, {"per", o.price->per}, {"kind", o.price->kind}};
    put(p, "as_of", o.price->as_of);
    put(p, "source", o.price->source);
    if (!o.price->flags.empty()) p["flags"] = o.price->flags;
  }
  put(j, "billing_increment_seconds", o.billing_increment_seconds);
  put(j, "start_seconds", o.start_seconds);
  put(j, "queue_seconds", o.queue_seconds);
  put(j, "mtti_hours", o.mtti_hours);
  put(j, "egress", o.egress);
  put(j, "storage", o.storage);
  if (o.energy) {
    nlohmann::ordered_json e = nlohmann::ordered_json::object();
    put(e, "node_watts", o.energy->node_watts);
    put(e, "pue", o.energy->pue);
    put(e, "tariff", o.energy->tariff);
    put(e, "depreciation", o.energy->depreciation);
    j["energy"] = e;
  }
  if (!o.plans.empty()) j["plans"] = o.plans;
  if (!o.features.empty()) j["features"] = o.features;
  put(j, "max_seconds", o.max_seconds);
  put(j, "unavailable", o.unavailable);
  return j;
}

}  // namespace shardfit::pricing
