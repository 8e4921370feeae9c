#include "pricing/inventory.hpp"

#include <set>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::pricing {
namespace {

const Json& list_of(const Json& v, const std::string& where) {
  if (!v.is_array()) throw Error("wrong_type", where, "a list is needed, not " + brief(v));
  return v;
}

void put(nlohmann::ordered_json& j, const char* key, const std::vector<std::string>& list) {
  if (!list.empty()) j[key] = list;
}

}  // namespace

Inventory parse_inventory(const nlohmann::json& object, const std::string& where) {
  ObjectReader r(object, where);
  Inventory inv;
  inv.cluster = r.string("cluster").value_or("");
  inv.as_of = r.string("as_of").value_or("");
  std::set<std::string> names;
  for (const auto& item : list_of(r.required("nodes"), r.at("nodes"))) {
    ObjectReader n(item, r.at("nodes") + "/" + std::to_string(inv.nodes.size()));
    Node node;
    node.name = n.required_string("name");
    if (!names.insert(node.name).second)
      throw Error("duplicate", n.at("name"), "node \"" + node.name + "\" occurs twice");
    if (const Json* v = n.get("gpus"))
      for (const auto& g : list_of(*v, n.at("gpus"))) {
        ObjectReader gr(g, n.at("gpus") + "/" + std::to_string(node.gpus.size()));
        Gres gres{gr.string("type").value_or(""), gr.required_integer("count", 0, 4096)};
        gr.finish();
        node.gpus.push_back(gres);
      }
    node.cpus = n.required_integer("cpus", 1, 1000000);
    node.cores = n.integer("cores", 0, 1000000).value_or(0);
    node.memory_mib = n.required_integer("memory_mib", 1, std::int64_t{1} << 40);
    node.features = n.strings("features").value_or(std::vector<std::string>{});
    node.state = n.string("state").value_or("");
    node.reason = n.string("reason").value_or("");
    n.finish();
    inv.nodes.push_back(std::move(node));
  }
  for (const auto& item : list_of(r.required("partitions"), r.at("partitions"))) {
    ObjectReader p(item, r.at("partitions") + "/" + std::to_string(inv.partitions.size()));
    Partition part;
    part.name = p.required_string("name");
    part.is_default = p.boolean("is_default").value_or(false);
    part.up = p.boolean("up").value_or(true);
    part.nodes = p.strings("nodes").value_or(std::vector<std::string>{});
    for (size_t i = 0; i < part.nodes.size(); ++i)
      if (!names.count(part.nodes[i]))
        throw Error("unknown_node", p.at("nodes") + "/" + std::to_string(i),
                    "node \"" + part.nodes[i] + "\" is not in the list of nodes");
    part.max_seconds = p.number("max_seconds", 0);
    part.max_nodes = p.integer("max_nodes", 0, 1000000);
    part.allow_accounts = p.strings("allow_accounts").value_or(std::vector<std::string>{});
    part.deny_accounts = p.strings("deny_accounts").value_or(std::vector<std::string>{});
    part.allow_qos = p.strings("allow_qos").value_or(std::vector<std::string>{});
    part.deny_qos = p.strings("deny_qos").value_or(std::vector<std::string>{});
    part.allow_groups = p.strings("allow_groups").value_or(std::vector<std::string>{});
    p.finish();
    inv.partitions.push_back(std::move(part));
  }
  r.finish();
  return inv;
}

Inventory read_inventory(const std::string& file) {
  const Json root = read_json_file(file);
  try {
    return parse_inventory(root);
  } catch (Error& e) {
    throw e.in_file(file);
  }
}

nlohmann::ordered_json to_json(const Inventory& inv) {
  nlohmann::ordered_json j{{"cluster", inv.cluster}};
  if (!inv.as_of.empty()) j["as_of"] = inv.as_of;
  auto& nodes = j["nodes"] = nlohmann::ordered_json::array();
  for (const auto& n : inv.nodes) {
    nlohmann::ordered_json x{{"name", n.name}};
    auto& gpus = x["gpus"] = nlohmann::ordered_json::array();
    for (const auto& g : n.gpus) gpus.push_back({{"type", g.type}, {"count", g.count}});
    x["cpus"] = n.cpus;
    if (n.cores) x["cores"] = n.cores;
    x["memory_mib"] = n.memory_mib;
    put(x, "features", n.features);
    if (!n.state.empty()) x["state"] = n.state;
    if (!n.reason.empty()) x["reason"] = n.reason;
    nodes.push_back(std::move(x));
  }
  auto& partitions = j["partitions"] = nlohmann::ordered_json::array();
  for (const auto& p : inv.partitions) {
    nlohmann::ordered_json x{{"name", p.name}, {"is_default", p.is_default}, {"up", p.up}, {"nodes", p.nodes}};
    if (p.max_seconds) x["max_seconds"] = *p.max_seconds;
    if (p.max_nodes) x["max_nodes"] = *p.max_nodes;
    put(x, "allow_accounts", p.allow_accounts);
    put(x, "deny_accounts", p.deny_accounts);
    put(x, "allow_qos", p.allow_qos);
    put(x, "deny_qos", p.deny_qos);
    put(x, "allow_groups", p.allow_groups);
    partitions.push_back(std::move(x));
  }
  return j;
}

}  // namespace shardfit::pricing
