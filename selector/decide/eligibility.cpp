#include "selector/decide/eligibility.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "selector/hardware/device.hpp"

namespace shardfit::decide {

namespace {

void reject(Standing& s, std::string rule, std::string reason, std::string remedy = "") {
  if (!s.rule.empty()) return;  // the first reason stands
  s.rule = std::move(rule);
  s.reason = std::move(reason);
  s.remedy = std::move(remedy);
}

// The fields that rest on the weakest evidence, by name.
std::string weakest_fields(const regions::PinResult& result) {
  std::vector<std::string> names;
  for (const auto& f : result.fields)
    if (f.evidence == result.weakest && std::find(names.begin(), names.end(), f.name) == names.end())
      names.push_back(f.name);
  return join(names, ", ");
}

bool named(const std::vector<std::string>& gpus, const hardware::Device& device, const std::string& as_written) {
  for (const auto& name : gpus) {
    if (to_lower(name) == to_lower(as_written) || to_lower(name) == device.key) return true;
    const auto is = [&](const std::string& alias) { return to_lower(alias) == to_lower(name); };
    if (std::any_of(device.aliases.begin(), device.aliases.end(), is) ||
        std::any_of(device.slurm_types.begin(), device.slurm_types.end(), is))
      return true;
  }
  return false;
}

}  // namespace

std::vector<Standing> standings(const job::Job& job, const std::vector<pricing::Offer>& offers,
                                const std::vector<regions::Atom>& pins, const std::string& currency, std::int64_t now,
                                const regions::Catalogue& catalogue, const pricing::Rates& rates,
                                const Options& options) {
  std::vector<Standing> out;
  std::set<std::string> seen;
  regions::PinResult place;  // the job's own places are the same for every offer
  std::string place_name;
  for (const auto& [what, where] : job.locations) {
    place = regions::check_location(where, pins, catalogue, "locations/" + what, now);
    if (!place.passes) {
      place_name = what;
      break;
    }
  }
  for (size_t i = 0; i < offers.size(); ++i) {
    const auto& offer = offers[i];
    if (!seen.insert(offer.id).second)
      throw Error("duplicate", "/offers/" + std::to_string(i) + "/id", "two offers have the id \"" + offer.id + "\"",
                  "give each offer an id of its own");
    Standing s;
    s.offer = &offer;
    const regions::Record* record = catalogue.find(offer.region);
    if (!pins.empty()) {
      const auto result = regions::evaluate(pins, record, now);
      if (!result.passes) {
        reject(s, result.rule,
               record
                   ? result.reason
                   : "region \"" + offer.region + "\" is not in the catalogue, and an unknown region satisfies no pin",
               record ? "" : "add a record for it to the site's regions.d");
      } else if (!place.passes && !place_name.empty()) {
        reject(s, place.rule, place.reason, "change locations." + place_name + " of the job");
      } else if (result.weakest < regions::Evidence::kVerified && !result.fields.empty()) {
        s.flags.push_back(
            fmt::format("pins rest on {} evidence: {}", regions::to_string(result.weakest), weakest_fields(result)));
      }
    }
    if (offer.from_slurm && offer.partition.empty())
      reject(s, "partition", "no partition reaches it", "add a partition for it, or give the offers by file");
    if (!offer.unavailable.empty()) reject(s, "partition", offer.unavailable);
    try {
      s.device = &hardware::find_device(offer.gpu, "gpu");
    } catch (const Error& e) {
      reject(s, "gpu_unknown", e.message, e.remedy);
    }
    if (s.device && !options.gpus.empty() && !named(options.gpus, *s.device, offer.gpu))
      reject(s, "gpu", s.device->key + " is not among the GPUs asked for (" + join(options.gpus, ", ") + ")");
    if (s.device && s.device->is_cpu && !offer.device_memory_gib && offer.plans.empty())
      reject(s, "capacity_unknown", "device_memory_gib of this CPU offer is not stated", "state device_memory_gib");
    auto pricer = std::make_unique<pricing::Pricer>(offer, rates, currency, now, options.price_max_age);
    if (pricer->usable()) s.pricer = std::move(pricer);
    else reject(s, pricer->rule(), pricer->reason());
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace shardfit::decide
