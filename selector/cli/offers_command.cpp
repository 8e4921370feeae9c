// shardfit offers: what the cluster offers now, with price, region, evidence and age.
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plugin/inventory/slurm_inventory.hpp"
#include "pricing/book.hpp"
#include "pricing/inventory.hpp"
#include "pricing/inventory_offers.hpp"
#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"
#include "regions/pins.hpp"
#include "selector/cli/cluster_offers.hpp"
#include "selector/cli/parse.hpp"
#include "selector/cli/text_table.hpp"

namespace shardfit::cli {
namespace {

std::string price_text(const pricing::Offer& o) {
  if (!o.price) return o.energy ? "own (energy)" : "-";
  return fmt::format("{:.2f} {}/{}{}", o.price->amount, o.price->currency,
                     o.price->per == "gpu_hour" ? "GPU h" : "node h",
                     o.price->kind == "on_demand" ? "" : " " + o.price->kind);
}

std::string age_text(const pricing::Offer& o, std::int64_t now) {
  const auto t = o.price && !o.price->as_of.empty() ? parse_time(o.price->as_of) : std::nullopt;
  if (!t) return o.price ? "unknown" : "-";
  const auto hours = std::max<std::int64_t>(0, now - *t) / 3600;
  return hours < 48 ? std::to_string(hours) + " h" : std::to_string(hours / 24) + " d";
}

}  // namespace

int offers_command(const Arguments& arguments) {
  CLI::App app{"What the cluster offers now: devices, prices, regions and what that knowledge rests on", "offers"};
  std::string inventory_file, now_text, reservation;
  std::vector<std::string> pins;
  bool json = false;
  app.add_option("--inventory", inventory_file,
                 "Read the cluster's inventory from this file (JSON) instead of from Slurm");
  app.add_option("--reservation", reservation, "Count the nodes of this reservation");
  app.add_option("--pin", pins, "Mark what satisfies this pin; may be repeated")->take_all()->expected(1);
  app.add_option("--now", now_text, "Point in time that ages are counted to (RFC 3339; default: now)");
  app.add_flag("--json", json, "Print JSON that --offers of shardfit plan reads");
  if (const auto status = parse(app, arguments)) return *status;
  std::int64_t now = now_seconds();
  if (!now_text.empty()) {
    const auto t = parse_time(now_text);
    if (!t)
      throw Error("bad_time", "--now", "time \"" + now_text + "\" cannot be read", "write it as 2026-08-22T00:00:00Z");
    now = *t;
  }
  const auto atoms = pins.empty() ? std::vector<regions::Atom>{} : regions::parse_pins(pins, "--pin");

  const auto site = pricing::read_site();
  const auto catalogue = regions::Catalogue::load(site.regions_dir);
  pricing::Inventory inventory;
  if (!inventory_file.empty()) {
    inventory = pricing::read_inventory(inventory_file);
  } else {
    try {
      inventory = inventory::slurm_inventory({.cluster = site.cluster, .reservation = reservation});
    } catch (const Error& e) {
      throw Error(e.code, e.where, e.message, "run where Slurm's commands reach the cluster, or give --inventory FILE",
                  e.exit_status);
    }
  }
  const auto types = gpu_types();
  const auto book = pricing::Book::open(site.state_dir, &types);
  const auto made = pricing::offers_from(inventory, site, book, catalogue, types, this_user(), now);

  if (json) {
    OrderedJson out{{"cluster", inventory.cluster.empty() ? site.cluster : inventory.cluster},
                    {"now", format_time(now)},
                    {"offers", OrderedJson::array()},
                    {"notes", OrderedJson::array()}};
    for (const auto& o : made.offers) out["offers"].push_back(pricing::to_json(o));
    for (const auto& n : made.notes) {
      OrderedJson note{{"partition", n.partition}};
      if (!n.feature.empty()) note["feature"] = n.feature;
      if (!n.node.empty()) note["node"] = n.node;
      note["reason"] = n.reason;
      note["offer"] = n.gives_offer;
      out["notes"].push_back(note);
    }
    const std::string text = out.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kExitDone;
  }

  std::vector<std::string> header = {"<OFFER",    "<GPU",   ">NODES", "<REGION", "<COUNTRY",
                                     "<EVIDENCE", ">PRICE", ">AGE",   "<MARKS"};
  if (!atoms.empty()) header.push_back("<PINS");
  TextTable table(header);
  for (const auto& o : made.offers) {
    const auto* r = catalogue.find(o.region);
    std::vector<std::string> marks;
    if (!o.unavailable.empty()) marks.push_back(o.unavailable);
    if (o.price) {
      for (const auto& f : o.price->flags) marks.push_back("price " + f);
      const auto t = o.price->as_of.empty() ? std::nullopt : parse_time(o.price->as_of);
      const double limit =
          o.price->kind == "spot" ? site.price_max_age.spot_seconds : site.price_max_age.on_demand_seconds;
      if (t && static_cast<double>(now - *t) > limit) marks.push_back("price stale");
    } else if (!o.energy) {
      marks.push_back("no price");
    }
    const auto evidence = r ? r->evidence_of("country").evidence : regions::Evidence::kNone;
    std::vector<std::string> cells = {o.id,
                                      fmt::format("{} x {}", o.gpus_per_node, o.gpu),
                                      std::to_string(o.max_nodes),
                                      o.region.empty() ? "-" : o.region,
                                      r && r->country ? *r->country : "?",
                                      evidence == regions::Evidence::kNone ? "-" : regions::to_string(evidence),
                                      price_text(o),
                                      age_text(o, now),
                                      join(marks, "; ")};
    if (!atoms.empty()) {
      const auto result = regions::evaluate(atoms, r, now);
      cells.push_back(result.passes ? "ok" : "no: " + result.rule);
    }
    table.add(std::move(cells));
  }
  std::string text = table.empty() ? "No offers.\n" : table.text();
  for (const auto& n : made.notes)
    text += "  " + (n.partition.empty() ? "" : n.partition + (n.feature.empty() ? "" : "/" + n.feature) + ": ") +
            n.reason + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitDone;
}

}  // namespace shardfit::cli
