// From an attempt to its record: GPUs, region and price by the site file, prediction by the plan's folder, measurement
// by metrics.jsonl.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pricing/ledger.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"

namespace shardfit::pricing {
namespace {

namespace fs = std::filesystem;

// These files belong to users: only regular files of sensible size are read, and whatever is wrong with them makes a
// field unknown.
std::optional<std::string> user_file(const fs::path& path, std::size_t limit) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec) || ec) return std::nullopt;
  const auto size = fs::file_size(path, ec);
  if (ec || size > limit) return std::nullopt;
  try {
    return read_file(path, limit);
  } catch (const Error&) {
    return std::nullopt;
  }
}

Json user_json(const fs::path& path) {
  const auto text = user_file(path, std::size_t{64} << 20);
  if (!text) return nullptr;
  Json j = Json::parse(*text, nullptr, false, true);
  return j.is_discarded() ? Json(nullptr) : j;
}

const Json* at(const Json& j, std::initializer_list<const char*> path) {
  const Json* p = &j;
  for (const char* key : path) {
    if (!p->is_object()) return nullptr;
    const auto it = p->find(key);
    if (it == p->end()) return nullptr;
    p = &*it;
  }
  return p;
}
std::optional<double> number_at(const Json& j, std::initializer_list<const char*> path) {
  const Json* v = at(j, path);
  return v && v->is_number() ? std::optional(v->get<double>()) : std::nullopt;
}
std::string text_at(const Json& j, std::initializer_list<const char*> path) {
  const Json* v = at(j, path);
  return v && v->is_string() ? v->get<std::string>() : "";
}

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
    r_.seconds = static_cast<double>(a_.end - a_.start);
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
    Money sum(0, r_.currency);
    const auto add = [&](const char* part, double amount, const std::string& currency) {
      const auto rate = to_.rates.rate(currency, r_.currency);
      if (!rate) {
        unknown("cost",
                "no exchange rate from " + currency + " to " + r_.currency + " in the rates of " + to_.rates.date());
        return false;
      }
      if (currency != r_.currency) r_.rate_date = to_.rates.date();
      const Money m(amount * *rate, r_.currency);
      r_.cost_parts.emplace_back(part, m);
      sum += m;
      return true;
    };
    const double hours = *r_.billed_seconds / 3600.0;
    bool known = r_.price.has_value();
    if (r_.price)
      known = add("compute",
                  r_.price->amount * (r_.price->per == "gpu_hour" ? static_cast<double>(r_.gpus) : share) * hours,
                  r_.price->currency);
    if (nodes_ && nodes_->energy) {
      const Energy& e = *nodes_->energy;
      const double held = share * r_.seconds / 3600.0;
      if (!e.node_watts || !e.pue || !e.tariff || (!e.depreciation && !r_.price)) {
        unknown("cost", "the site file's energy section of partition " + a_.partition + " is not complete");
        known = false;
      } else {
        known = add("energy", *e.node_watts / 1000.0 * *e.pue * e.tariff->amount * held, e.tariff->currency) &&
                (known || !r_.price);
        if (e.depreciation)
          known = add("depreciation", e.depreciation->amount * held, e.depreciation->currency) && known;
      }
    }
    if (known) {
      r_.cost = sum;
    } else {
      r_.cost_parts.clear();
      unknown(
          "cost", r_.unknown.empty() ? "no price is known" : [&] {
            for (const auto& [f, w] : r_.unknown)
              if (f == "price") return w;
            return std::string("no price is known");
          }());
    }
  }

  const Attempt& a_;
  const Accounts& to_;
  LedgerRecord r_;
  Json decision_, job_;
  std::string no_plan_;
  const SiteNodes* nodes_ = nullptr;
};

}  // namespace

LedgerRecord account(const Attempt& attempt, const Accounts& accounts) { return Accounting(attempt, accounts).run(); }

}  // namespace shardfit::pricing
