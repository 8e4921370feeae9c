#include "selector/cli/slurm_decision.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "plugin/handoff/exports.hpp"
#include "plugin/inventory/slurm_inventory.hpp"
#include "plugin/policy/tables.hpp"
#include "pricing/book.hpp"
#include "pricing/gpu_types.hpp"
#include "pricing/inventory_offers.hpp"
#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/pins.hpp"
#include "selector/cli/cluster_offers.hpp"
#include "selector/cli/job_setting.hpp"
#include "selector/decide/decide.hpp"
#include "selector/decide/table.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/money.hpp"
#include "selector/search/model_cache.hpp"

namespace shardfit::cli {
namespace {

// A job needs time before its first step (start of the programs, reading the model) and after its last (the export).
constexpr double kTimeLimitAllowance = 120;

pricing::UserContext submitter(const SlurmRequest& request) {
  pricing::UserContext user;
  user.account = request.account;
  user.qos = request.qos;
  const passwd* p = ::getpwuid(::getuid());
  if (!p) return user;
  user.user = p->pw_name;
  int count = 64;
  std::vector<gid_t> ids(static_cast<std::size_t>(count));
  if (::getgrouplist(p->pw_name, p->pw_gid, ids.data(), &count) < 0) {
    ids.resize(static_cast<std::size_t>(std::max(count, 1)));
    if (::getgrouplist(p->pw_name, p->pw_gid, ids.data(), &count) < 0) return user;
  }
  for (int i = 0; i < count; ++i) {
    if (const group* g = ::getgrgid(ids[static_cast<std::size_t>(i)])) user.groups.emplace_back(g->gr_name);
  }
  return user;
}

job::Job read_submitted_job(const std::string& file) {
  try {
    const auto slash = file.find_last_of('/');
    auto job = job::parse_job(read_json_file(file), slash == std::string::npos ? "" : file.substr(0, slash + 1));
    job.file = file;
    return job;
  } catch (Error& e) {
    e.in_file(file);
    throw;
  }
}

// Pins that policy lays on a partition bind only jobs there: its offers must satisfy them by themselves.
void apply_partition_policy(std::vector<pricing::Offer>& offers, const pricing::Site& site,
                            const regions::Catalogue& catalogue, std::int64_t now) {
  for (auto& offer : offers) {
    const auto pins = site.policy.partitions.find(offer.partition);
    if (pins == site.policy.partitions.end() || !offer.unavailable.empty()) continue;
    const auto result = regions::evaluate(regions::parse_pins(pins->second, "/policy/partitions/" + offer.partition),
                                          catalogue.find(offer.region), now);
    if (!result.passes)
      offer.unavailable =
          "the site's policy for partition " + offer.partition + " demands " + result.rule + ": " + result.reason;
  }
}

// Slurm's name of the chosen GPUs: what the partition's nodes call the type that the offer was made from; "" where they
// name none.
std::string slurm_gpu_type(const pricing::Inventory& inventory, const pricing::Site& site,
                           const pricing::Offer& offer) {
  std::set<std::string> nodes_of, types;
  for (const auto& p : inventory.partitions) {
    if (p.name == offer.partition) nodes_of.insert(p.nodes.begin(), p.nodes.end());
  }
  for (const auto& n : inventory.nodes) {
    if (!nodes_of.count(n.name)) continue;
    const bool selected = std::all_of(offer.features.begin(), offer.features.end(), [&](const std::string& f) {
      return std::find(n.features.begin(), n.features.end(), f) != n.features.end();
    });
    if (!selected) continue;
    for (const auto& g : n.gpus) types.insert(g.type);
  }
  if (types.size() == 1) return *types.begin();
  for (const auto& type : types) {
    const auto named = site.gpu_names.find(type);
    const auto* device = hardware::try_find_device(named == site.gpu_names.end() ? type : named->second);
    if (device && device->key == offer.gpu) return type;
  }
  for (const auto& type : types) {  // an ambiguous name ("h100") of which the site file says what it means here
    const auto& devices = hardware::devices();
    const auto of_offer =
        std::find_if(devices.begin(), devices.end(), [&](const auto& d) { return d.key == offer.gpu; });
    if (of_offer != devices.end() && std::find(of_offer->slurm_types.begin(), of_offer->slurm_types.end(),
                                               to_lower(type)) != of_offer->slurm_types.end())
      return type;
  }
  return "";
}

// What the decision will need anyway, read while Slurm answers. Whatever is wrong with it is told where it is needed.
void read_ahead(const pricing::Book& book, const pricing::Site& site, const job::Job& job, search::ModelCache& models) {
  const auto from_book = [](const pricing::SiteNodes& n) { return n.price && !n.price->stated; };
  try {
    if (std::any_of(site.partitions.begin(), site.partitions.end(), [&](const auto& p) {
          return from_book(p.second) || std::any_of(p.second.by_feature.begin(), p.second.by_feature.end(),
                                                    [&](const auto& f) { return from_book(f.second); });
        }))
      book.rows();
    if (!job.model.empty()) models.load(job.model_path(), "");
  } catch (const Error&) {
  }
}

std::string notes_text(const std::vector<pricing::OfferNote>& notes) {
  std::string out;
  for (const auto& n : notes) {
    if (n.gives_offer) continue;
    out += "note: " + (n.partition.empty() ? std::string("the cluster") : "partition " + n.partition) +
           (n.feature.empty() ? "" : ", feature " + n.feature) + ": " + n.reason + "\n";
  }
  return out;
}

}  // namespace

SlurmAnswer decide_for_slurm(const SlurmRequest& request) {
  const auto site = pricing::read_site();
  // Slurm answers while job, prices and regions are read.
  auto asked = inventory::start_slurm_inventory({.cluster = site.cluster,
                                                 .reservation = request.reservation,
                                                 .deadline_seconds = std::max(1.0, site.decide_timeout_seconds * 0.7)});
  const auto job = read_submitted_job(request.job_file);
  const auto now = now_seconds();
  const auto catalogue = regions::Catalogue::load(site.regions_dir);
  const auto rates = pricing::Rates::load(site.state_dir);
  const auto user = submitter(request);

  decide::Limits limits;
  auto own_pins = job.pins;
  own_pins.insert(own_pins.end(), request.pins.begin(), request.pins.end());
  std::vector<std::string> own_atoms;
  regions::parse_pins(request.pins,
                      request.option_prefix + "pin");  // an error in them names the option, not the job file
  try {
    for (const auto& atom : regions::parse_pins(own_pins, "/pins")) own_atoms.push_back(atom.text);
  } catch (Error& e) {
    e.in_file(request.job_file);
    throw;
  }
  limits.pins = request.pins;
  for (const auto& pin : policy::policy_pins(site, request.account, user.user, request.qos)) limits.pins.push_back(pin);
  if (!request.deadline.empty())
    limits.deadline_seconds = job::parse_deadline(Json(request.deadline), request.option_prefix + "deadline");
  if (!request.max_cost.empty())
    limits.max_cost = job::parse_money(std::string_view(request.max_cost), request.option_prefix + "max-cost");
  for (const auto& gpu : request.gpus) hardware::find_device(gpu, request.option_prefix + "gpu");

  const auto types = gpu_types();
  const auto book = pricing::Book::open(site.state_dir, &types);
  search::ModelCache models;
  read_ahead(book, site, job, models);
  const auto inventory = asked.get();
  auto made = pricing::offers_from(inventory, site, book, catalogue, types, user, now);
  if (made.offers.empty()) {
    throw Error(
        "no_offers", "",
        "the cluster offers nothing that can be priced" + (made.notes.empty() ? "" : ": " + made.notes.front().reason),
        "describe its partitions in " + (site.file.empty() ? std::string("/etc/shardfit/shardfit.conf") : site.file),
        kExitFailed);
  }
  apply_partition_policy(made.offers, site, catalogue, now);

  decide::Options options{.catalogue = &catalogue,
                          .rates = &rates,
                          .price_max_age = site.price_max_age,
                          .models = &models,
                          .default_currency = site.currency};
  options.gpus = request.gpus;
  if (request.max_nodes > 0) options.max_nodes = request.max_nodes;
  if (std::any_of(made.offers.begin(), made.offers.end(), [](const auto& o) { return o.gpu == "cpu"; }))
    options.calibration = stored_calibration();
  decide::Decision decision;
  try {
    decision = decide::decide(job, made.offers, limits, now, options);
  } catch (Error& e) {
    e.in_file(request.job_file);
    throw;
  }

  SlurmAnswer answer;
  answer.text = decide::table(decision, job) + notes_text(made.notes);
  answer.one_line = decide::one_line(decision);
  if (!decision.chosen) return answer;
  const auto& chosen = *decision.chosen;
  if (!chosen.plan)
    throw Error("missing_key", "/model", "a job of pins alone can be judged but not run",
                "name a model and a sequence_length", kExitBadInput)
        .in_file(request.job_file);
  answer.chosen = true;
  const auto offer =
      std::find_if(made.offers.begin(), made.offers.end(), [&](const auto& o) { return o.id == chosen.offer; });
  if (offer == made.offers.end())
    throw Error("internal", "", "the chosen offer " + chosen.offer + " is not among the cluster's", "report this",
                kExitFailed);

  handoff::Request wanted;
  wanted.partition = offer->partition;
  wanted.features = offer->features;
  if (offer->gpu != "cpu") wanted.slurm_gpu_type = slurm_gpu_type(inventory, site, *offer);
  if (chosen.run_seconds_high > 0)
    wanted.run_seconds_high = chosen.run_seconds_high + offer->start_seconds.value_or(0) + kTimeLimitAllowance;
  wanted.max_seconds = offer->max_seconds;
  wanted.node_ram_gib = offer->host.ram_gib.value_or(0);
  wanted.node_cpus = offer->host.vcpus.value_or(0);
  wanted.node_gpus = offer->gpus_per_node;
  if (chosen.estimate) wanted.host_bytes = chosen.estimate->memory.host;
  answer.options = handoff::sbatch_options(*chosen.plan, wanted);
  answer.options.defaults.emplace_back("comment", "shardfit: " + answer.one_line);  // squeue -o %k, sacct -o Comment
  if (!request.user_time.empty() && wanted.run_seconds_high > 0) {
    double limit = 0;
    try {
      limit = parse_duration(request.user_time, "--time");
    } catch (const Error&) {  // a form that only Slurm knows: it judges it
    }
    if (limit > 0 && limit < chosen.run_seconds_high) {
      answer.text += fmt::format("note: --time={} is shorter than the prediction's upper end, {}\n", request.user_time,
                                 format_duration(chosen.run_seconds_high));
    }
  }
  if (!request.write) return answer;
  const auto work_dir = request.work_dir.empty() ? std::filesystem::current_path().string() : request.work_dir;
  auto files =
      handoff::write_files(job, *chosen.plan, decide::to_json(decision).dump(2) + "\n", work_dir, site.plan_dir);
  answer.environment = std::move(files.environment);
  if (const auto note = handoff::torchtitan_note(*chosen.plan); !note.empty() && job.framework.trainer == "torchtitan")
    answer.text += "note: " + note + "\n";
  if (!own_atoms.empty()) answer.control.emplace_back("SHARDFIT_PINS", join(own_atoms, "&"));
  return answer;
}

}  // namespace shardfit::cli
