// From an attempt to its record: GPUs, region and price by the site file, prediction by the plan's folder, measurement
// by metrics.jsonl.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pricing/ledger.hpp"
#include "pricing/user_files.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"

namespace shardfit::pricing {
namespace {

namespace fs = std::filesystem;

class Accounting {
 public:
  Accounting(const Attempt& a, const Accounts& to) : a_(a), to_(to) {}

  LedgerRecord run() {
    facts();
    plan();
    prediction();
    measurement();
    device();
    cost();
    return std::move(r_);
  }

 private:
  void unknown(const char* field, const std::string& why) {
    for (const auto& [f, w] : r_.unknown)
      if (f == field) return;
    r_.unknown.emplace_back(field, why);
  }

  void facts() {
    r_.cluster = a_.cluster.empty() ? to_.site.cluster : a_.cluster;
    r_.job_id = a_.job_id;
    r_.restart = a_.restart;
    r_.array_job_id = a_.array_job_id;
    r_.array_task_id = a_.array_task_id;
    r_.het_job_id = a_.het_job_id;
    r_.submit = a_.submit;
    r_.start = a_.ran() ? a_.start : 0;
    r_.end = a_.end;
    r_.state = a_.state;
    r_.user = a_.user;
    r_.account = a_.account;
    r_.partition = a_.partition;
    r_.name = a_.name;
    r_.pins = a_.pins;
    r_.plan = a_.plan_sha256;
    r_.currency = to_.site.currency;
    if (!a_.ran()) return;
    r_.nodes = a_.total_nodes;
    r_.cpus = a_.total_cpus;
    r_.seconds = static_cast<double>(std::max<std::int64_t>(a_.end - a_.start, 1));
    if (a_.ended_at_once())
      r_.basis.emplace_back("seconds",
                            "it started and ended within one second of Slurm's clock: booked as 1 s, its most");
  }

  // The folder that was written before submission; its path is in the job's environment, or follows from the digest.
  void plan() {
    fs::path folder;
    if (const auto it = a_.environment.find("SHARDFIT_PLAN"); it != a_.environment.end())
      folder = fs::path(it->second).parent_path();
    else if (!a_.plan_sha256.empty() && !to_.site.plan_dir.empty())
      folder = fs::path(to_.site.plan_dir) / a_.plan_sha256;
    else if (!a_.plan_sha256.empty() && !a_.work_dir.empty())
      folder = fs::path(a_.work_dir) / ".shardfit" / a_.plan_sha256;
    if (r_.plan.empty() && !folder.empty())
      if (const std::string name = folder.filename().string().substr(0, 64); name.size() == 64) r_.plan = name;
    if (folder.empty()) {
      no_plan_ = "the job was not submitted with a plan";
      return;
    }
    decision_ = user_json(folder / "decision.json");
    job_ = user_json(folder / "job.json");
    if (!decision_.is_object()) no_plan_ = (folder / "decision.json").string() + " cannot be read";
  }

  void prediction() {
    const auto each = [&](const char* field, std::optional<double>& to, std::optional<double> value, const char* what) {
      to = value;
      if (!to) unknown(field, no_plan_.empty() ? std::string("the decision states no ") + what : no_plan_);
    };
    each("predicted.seconds", r_.predicted.seconds, number_at(decision_, {"chosen", "seconds"}), "time");
    each("predicted.memory_peak", r_.predicted.memory_peak,
         number_at(decision_, {"chosen", "estimate", "memory", "allocated_peak"}), "memory");
    each("predicted.step", r_.predicted.step, number_at(decision_, {"chosen", "estimate", "time", "step"}),
         "step time");
    const std::string currency = text_at(decision_, {"chosen", "cost", "currency"});
    const auto convert = [&](std::optional<double> amount) -> std::optional<double> {
      if (!amount) return amount;
      const auto rate = to_.rates.rate(currency, r_.currency);
      return rate ? std::optional(*amount * *rate) : std::nullopt;
    };
    each("predicted.cost", r_.predicted.cost, convert(number_at(decision_, {"chosen", "cost", "amount"})), "cost");
    r_.runner_up.offer = text_at(decision_, {"runner_up", "offer"});
    r_.runner_up.cost = convert(number_at(decision_, {"runner_up", "cost"}));
    if (r_.runner_up.offer.empty())
      unknown("runner_up", no_plan_.empty() ? "there was no other offer that could be chosen" : no_plan_);
  }

  // metrics.jsonl goes on from attempt to attempt: its last start is this attempt's if nothing wrote to it after the
  // attempt ended.
  void measurement() {
    std::string why;
    if (!a_.ran()) why = "the job never ran";
    else if (!job_.is_object()) why = no_plan_.empty() ? "the plan's job.json cannot be read" : no_plan_;
    else if (text_at(job_, {"output"}).empty()) why = "the job states no output folder";
    if (why.empty()) {
      const fs::path file = fs::path(text_at(job_, {"output"})) / "metrics.jsonl";
      std::error_code ec;
      const auto written = fs::last_write_time(file, ec);
      const auto text = ec ? std::nullopt : user_file(file, std::size_t{512} << 20);
      if (!text) {
        why = file.string() + " cannot be read";
      } else {
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::file_clock::to_sys(written).time_since_epoch())
                                 .count();
        if (seconds > a_.end + 600) why = "metrics.jsonl was written on after this attempt ended";
        else if (seconds + 60 < a_.start) why = "metrics.jsonl is older than this attempt";
        else read_metrics(*text);
      }
    }
    if (!r_.measured.memory_peak)
      unknown("measured.memory_peak", why.empty() ? "metrics.jsonl has no allocated_peak" : why);
    if (!r_.measured.step) unknown("measured.step", why.empty() ? "metrics.jsonl has fewer than two steps" : why);
  }

  void read_metrics(const std::string& text) {
    std::vector<double> steps;
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = std::min(text.find('\n', pos), text.size());
      const Json line = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(pos),
                                    text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      pos = end + 1;
      if (!line.is_object()) continue;
      if (text_at(line, {"event"}) == "start") {
        steps.clear();
        r_.measured.memory_peak.reset();
      }
      if (const auto s = number_at(line, {"step_seconds"})) steps.push_back(*s);
      if (const auto peak = number_at(line, {"memory", "allocated_peak"}))
        r_.measured.memory_peak = std::max(*peak, r_.measured.memory_peak.value_or(0));
    }
    if (steps.size() < 2) return;
    steps.erase(steps.begin());  // the first step warms caches
    std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end());
    r_.measured.step = steps[steps.size() / 2];
    if (steps.size() % 2 == 0)
      r_.measured.step =
          (*r_.measured.step +
           *std::max_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2))) /
          2;
  }

  void device() {
    const auto it = to_.site.partitions.find(a_.partition);
    if (it != to_.site.partitions.end()) {
      nodes_ = &it->second;
      // Which of a mixed partition's nodes they were is known by the feature that the decision asked for.
      if (!it->second.by_feature.empty()) {
        nodes_ = nullptr;
        const Json* features = at(decision_, {"chosen", "features"});
        for (const auto& [feature, entry] : it->second.by_feature)
          if (features && features->is_array() &&
              std::find(features->begin(), features->end(), Json(feature)) != features->end())
            nodes_ = &entry;
        if (!nodes_)
          unknown("region", "partition " + a_.partition + " stands in several places and the job names none");
      }
    }
    if (nodes_) r_.region = nodes_->region;
    if (r_.region.empty())
      unknown("region", a_.partition.empty() ? "the job had no partition"
                                             : "the site file states no region for partition " + a_.partition);
    if (!a_.ran()) return;
    for (const auto& g : a_.gpus) r_.gpus += g.count;
    std::string name;
    if (a_.gpus.size() == 1) {
      name = a_.gpus[0].type;
      if (const auto mapped = to_.site.gpu_names.find(name); mapped != to_.site.gpu_names.end()) name = mapped->second;
      else if (nodes_ && !nodes_->gpu.empty() && nodes_->gpu != "cpu") name = nodes_->gpu;
    }
    if (a_.gpus.empty() && nodes_ && nodes_->gpu == "cpu") {
      r_.gpu = "cpu";
      // Ranks stand for devices; jobs without a plan have none that could be counted.
      const auto per_node = number_at(decision_, {"chosen", "plan", "gpus_per_node"}),
                 count = number_at(decision_, {"chosen", "plan", "nodes"});
      if (per_node && count && *per_node * *count < 1e6) r_.gpus = static_cast<std::int64_t>(*per_node * *count);
      return;
    }
    if (a_.gpus.empty()) return unknown("gpu", "the job had no GPUs");
    const auto found = to_.types.candidates(name);
    if (a_.gpus.size() > 1) unknown("gpu", "the job had several types of GPU");
    else if (found.size() == 1) r_.gpu = found[0]->key;
    else
      unknown("gpu", name.empty() ? "Slurm names no type of GPU"
                                  : "GPU type \"" + name + "\" is " +
                                        (found.empty() ? "not in the hardware table"
                                                       : "ambiguous: map it in the site file's gpu_names"));
  }

  // The price at the time of start: stated by the site file, or the newest row of the book that was known by then.
  std::optional<double> find_price() {
    if (!nodes_) {
      unknown("price", "the site file does not describe partition " + a_.partition);
      return std::nullopt;
    }
    if (!nodes_->price) {
      if (!nodes_->energy) unknown("price", "the site file states no price for partition " + a_.partition);
      return std::nullopt;
    }
    const SitePrice& p = *nodes_->price;
    if (p.stated) {
      r_.price = *p.stated;
      if (nodes_->gpus_per_node) return static_cast<double>(*nodes_->gpus_per_node);
      return number_at(decision_, {"chosen", "offer_gpus_per_node"});
    }
    const PriceRow* best = nullptr;
    const auto [known, fresh] = to_.price_history.try_emplace(p.provider + "|" + p.instance + "|" + nodes_->region);
    if (fresh)
      known->second =
          to_.book.history({.provider = p.provider, .instance = p.instance, .region = nodes_->region, .gpu = ""});
    const auto& rows = known->second;
    for (const auto& row : rows) {
      const auto imported = row.imported_at.empty() ? std::optional<std::int64_t>(0) : parse_time(row.imported_at);
      if (row.verdict != Verdict::kRejected &&
          (!best || (parse_time(row.as_of).value_or(0) <= a_.start && imported.value_or(0) <= a_.start)))
        best = &row;
    }
    const auto amount = !best ? std::nullopt : p.kind == "spot" ? best->spot_per_hour : best->on_demand_per_hour;
    if (!amount) {
      unknown("price", "the price book has no " + p.kind + " price of " + p.provider + " " + p.instance + " in " +
                           nodes_->region);
      return std::nullopt;
    }
    // The seller's machine may have other GPUs a node than this partition: what counts is the price of one.
    const bool by_gpu = best->gpu_count && nodes_->gpu != "cpu";
    if (best->egress_per_gb) listed_egress_ = UnitPrice{*best->egress_per_gb, best->currency, "GB"};
    r_.price = Price{by_gpu ? *amount / *best->gpu_count : *amount,
                     best->currency,
                     by_gpu ? "gpu_hour" : "node_hour",
                     p.kind,
                     best->as_of,
                     best->source,
                     {}};
    return nodes_->gpus_per_node ? std::optional(static_cast<double>(*nodes_->gpus_per_node)) : best->gpu_count;
  }

  void cost() {
    if (!a_.ran()) {  // never held a machine
      r_.billed_seconds = 0;
      r_.cost = Money(0, r_.currency);
      return;
    }
    const auto node_gpus = find_price();
    const double increment = nodes_ && nodes_->billing_increment_seconds ? *nodes_->billing_increment_seconds : 1;
    r_.billed_seconds = increment > 0 ? std::ceil(r_.seconds / increment - 1e-9) * increment : r_.seconds;
    // A share of a node is billed by its GPUs; where it is not known how many a node has, whole nodes are.
    double share = static_cast<double>(r_.nodes);
    if (node_gpus && *node_gpus > 0 && r_.gpus > 0) share = static_cast<double>(r_.gpus) / *node_gpus;
    else if (nodes_ && nodes_->gpu != "cpu" && r_.gpus == 0 && r_.price)
      return unknown("cost", "the job took no GPUs of a partition that is priced by them");
    const double hours = *r_.billed_seconds / 3600.0;
    bool known = r_.price.has_value();
    if (r_.price) {
      const bool by_gpu = r_.price->per == "gpu_hour";
      const double units = by_gpu ? static_cast<double>(r_.gpus) : share;
      known = add("compute", r_.price->amount * units * hours, r_.price->currency,
                  fmt::format("{:g} {} x {:.4g} h at {:g} {} an hour", units, by_gpu ? "GPUs" : "nodes", hours,
                              r_.price->amount, r_.price->currency));
    }
    if (nodes_ && nodes_->energy) known = energy(*nodes_->energy, share * r_.seconds / 3600.0, known);
    if (known) known = stored() && moved();
    if (known) {
      Money sum(0, r_.currency);
      for (const auto& [part, amount] : r_.cost_parts) sum += amount;
      r_.cost = sum;
      return;
    }
    std::erase_if(r_.basis, [&](const auto& b) {
      return std::any_of(r_.cost_parts.begin(), r_.cost_parts.end(), [&](const auto& p) { return p.first == b.first; });
    });
    r_.cost_parts.clear();
    const auto price =
        std::find_if(r_.unknown.begin(), r_.unknown.end(), [](const auto& u) { return u.first == "price"; });
    unknown("cost", price == r_.unknown.end() ? "no price is known" : price->second);
  }

  // False, and the whole cost unknown, where there is no exchange rate.
  bool add(const char* part, double amount, const std::string& currency, const std::string& basis) {
    const auto rate = to_.rates.rate(currency, r_.currency);
    if (!rate) {
      unknown("cost",
              "no exchange rate from " + currency + " to " + r_.currency + " in the rates of " + to_.rates.date());
      return false;
    }
    if (currency != r_.currency) r_.rate_date = to_.rates.date();
    r_.cost_parts.emplace_back(part, Money(amount * *rate, r_.currency));
    r_.basis.emplace_back(part, basis);
    return true;
  }

  // Of owned nodes; `known`: whether their price is.
  bool energy(const Energy& e, double node_hours, bool known) {
    if (!e.node_watts || !e.pue || !e.tariff || (!e.depreciation && !r_.price)) {
      unknown("cost", "the site file's energy section of partition " + a_.partition + " is not complete");
      return false;
    }
    known = add("energy", *e.node_watts / 1000.0 * *e.pue * e.tariff->amount * node_hours, e.tariff->currency,
                fmt::format("{:.4g} node hours x {:g} W x PUE {:g} at {:g} {} a kWh", node_hours, *e.node_watts, *e.pue,
                            e.tariff->amount, e.tariff->currency)) &&
            (known || !r_.price);
    if (!e.depreciation) return known;
    return add("depreciation", e.depreciation->amount * node_hours, e.depreciation->currency,
               fmt::format("{:.4g} node hours at {:g} {}", node_hours, e.depreciation->amount,
                           e.depreciation->currency)) &&
           known;
  }

  // What the job says it stores, for as long as the attempt held its nodes. Unlike the machine, not all jobs and places
  // have it: a part that cannot be told is left out and named, and the rest of the cost stands.
  bool stored() {
    const auto gb = number_at(job_, {"storage_gb"});
    if (!nodes_ || (!gb && !nodes_->storage)) return true;
    if (!gb) return left_out("cost.storage", job_.is_object() ? "the job states no storage_gb" : no_plan_);
    if (*gb > 0 && !nodes_->storage)
      return left_out("cost.storage", "the site file states no price of storage for partition " + a_.partition);
    if (*gb <= 0) return true;
    const double amount = *gb * nodes_->storage->amount * r_.seconds / kMonthSeconds;
    if (!sensible(amount)) return left_out("cost.storage", "the job states a storage_gb that cannot be");
    return add("storage", amount, nodes_->storage->currency,
               fmt::format("{:g} GB as the job states x {:.4g} h at {:g} {} per GB and month", *gb, r_.seconds / 3600.0,
                           nodes_->storage->amount, nodes_->storage->currency));
  }

  // What the job says it moves out: once, with the attempt that completed it.
  bool moved() {
    const auto gb = number_at(job_, {"egress_gb"});
    const auto& price = nodes_ && nodes_->egress ? nodes_->egress : listed_egress_;
    if (a_.state != "COMPLETED" || (!gb && !(nodes_ && nodes_->egress))) return true;
    if (!gb) return left_out("cost.egress", job_.is_object() ? "the job states no egress_gb" : no_plan_);
    if (*gb <= 0) return true;
    if (!price)
      return left_out("cost.egress",
                      "neither site file nor price book states a price of egress for partition " + a_.partition);
    if (!sensible(*gb * price->amount)) return left_out("cost.egress", "the job states an egress_gb that cannot be");
    return add("egress", *gb * price->amount, price->currency,
               fmt::format("{:g} GB as the job states at {:g} {} per GB, with the attempt that completed", *gb,
                           price->amount, price->currency));
  }

  // Figures that users state may be anything.
  static bool sensible(double amount) { return amount < 1e9; }

  bool left_out(const char* part, const std::string& why) {
    unknown(part, why);
    return true;
  }

  const Attempt& a_;
  const Accounts& to_;
  LedgerRecord r_;
  Json decision_, job_;
  std::string no_plan_;
  const SiteNodes* nodes_ = nullptr;
  std::optional<UnitPrice> listed_egress_;  // by the row of the book that gave the price
};

}  // namespace

LedgerRecord account(const Attempt& attempt, const Accounts& accounts) { return Accounting(attempt, accounts).run(); }

}  // namespace shardfit::pricing
