#include "selector/memory/advice.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

#include "pricing/offers.hpp"
#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "selector/memory/levers.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/supported.hpp"

namespace shardfit::memory {
namespace {

constexpr int kMostEstimates = 300;

// What a lever's time goes into, for people; the figure beside it is selector/time's.
std::string_view basis_of(std::string_view lever) {
  struct Row {
    std::string_view lever, basis;
  };
  static constexpr Row kRows[] = {{"optimizer kernel", "one kernel, no copy of a state"},
                                  {"loss", "logits in chunks, never whole"},
                                  {"allocator", "less lies idle between tensors"},
                                  {"accumulation", "reduces gradients every micro batch"},
                                  {"checkpointing", "computes forward again in backward"},
                                  {"micro batch", "more and smaller products"},
                                  {"activation offload", "activations over PCIe"},
                                  {"reshard", "gathers again for backward"},
                                  {"unit", "smaller gathers"},
                                  {"prefetch", "waits for each gather"},
                                  {"stage", "gathers and reduces more"},
                                  {"framework", "gathers each block"},
                                  {"sequence parallel", "the same bytes between GPUs"},
                                  {"context parallel", "exchanges keys and values"},
                                  {"tensor parallel", "exchanges activations in each layer"},
                                  {"offload optimizer", "updates on the CPU, gradients and weights over PCIe"},
                                  {"offload parameters", "weights over PCIe"},
                                  {"pipeline parallel", "stages wait at the ends of a step"},
                                  {"ranks", "more GPUs"}};
  for (const Row& r : kRows)
    if (r.lever == lever) return r.basis;
  return "smaller buffers, more messages";
}

double sequences(const job::Plan& p) { return static_cast<double>(p.micro_batch * p.gradient_accumulation * p.data_parallel()); }

struct Tried {
  Advice advice;
  std::set<std::string> names;     // of the levers in it
  double cost = 0;                 // by which it is ranked
};

class Search {
 public:
  Search(const Request& request, const StepSeconds& seconds) : request_(request), seconds_(seconds) {
    const Result now = estimate_memory(request);
    fits_ = now.fits == "yes" || now.capacity_bytes <= 0;
    high_ = now.memory.device_peak_high;
    host_ = now.memory.host;
    host_short_ = now.fits == "no" && now.needed_high <= now.capacity_bytes;
    deficit_ = static_cast<double>(high_) - now.capacity_bytes;
    if (seconds_) step_ = seconds_(request.job, request.plan);
    own_ = request.job.framework.name == "shardfit" && !schedule::why_unsupported(request.job, request.plan, &request.model);
  }

  bool fits() const { return fits_; }

  // One more lever on top of `from`; false when it cannot be, or frees nothing.
  bool attempt(const Tried* from, const Lever& lever, Tried& out) {
    if (own_ && schedule::why_unsupported(lever.job, lever.plan, &request_.model)) return false;
    if (++estimates_ > kMostEstimates) return false;
    Advice& a = out.advice;
    a.job = lever.job;
    a.plan = lever.plan;
    Result r;
    try {
      r = estimate_memory({a.job, a.plan, request_.model, request_.device, request_.host});
    } catch (const Error&) {
      return false;                // the framework refuses the combination
    }
    a.device_peak_high = r.memory.device_peak_high;
    a.host = r.memory.host;
    a.nvme = r.memory.nvme;
    a.frees = high_ - a.device_peak_high;
    a.gpus = a.plan.gpus();
    a.frees_host = host_ - a.host;
    a.for_host = host_short_;
    const bool device_better = a.frees > (from ? from->advice.frees : 0) + high_ / 1000;
    const bool host_better = host_short_ && a.frees_host > (from ? from->advice.frees_host : 0) + host_ / 1000;
    if (host_short_ ? !host_better : !device_better) return false;
    const bool on_device = static_cast<double>(a.device_peak_high) <= r.capacity_bytes;
    const bool host_known = request_.host && request_.host->ram_gib;
    a.makes_it_fit = r.fits == "yes" || (on_device && r.fits == "unsure" && !host_known);
    if (a.makes_it_fit && r.fits != "yes") a.condition = fmt::format("{} of host memory a node", format_gib(static_cast<double>(a.host)));
    if (from) {
      a.changes = from->advice.changes;
      a.costs = from->advice.costs;
      out.names = from->names;
    }
    a.changes.push_back({lever.key, lever.from, lever.to});
    if (const std::string basis(basis_of(lever.name)); std::find(a.costs.begin(), a.costs.end(), basis) == a.costs.end()) a.costs.push_back(basis);
    out.names.insert(lever.name);
    if (seconds_ && step_ && *step_ > 0) {
      try {
        if (const auto now = seconds_(a.job, a.plan); now && *now > 0)
          a.slower = *now * static_cast<double>(a.gpus) * sequences(request_.plan) / (*step_ * static_cast<double>(request_.plan.gpus()) * sequences(a.plan)) - 1;
      } catch (const Error&) {
      }
    }
    // More hardware and host memory are weighed by what they cost beside GPU seconds: they must be there.
    out.cost = (from ? from->cost : 0) + 0.02 * lever.rank;
    if (a.slower) out.cost = std::max(0.0, *a.slower) + 0.02 * static_cast<double>(out.names.size()) + (out.names.contains("ranks") ? 0.5 : 0.0) + (a.plan.offload.any() && !request_.plan.offload.any() ? 0.1 : 0.0);
    return true;
  }

  double deficit() const { return deficit_; }
  bool exhausted() const { return estimates_ >= kMostEstimates; }

 private:
  const Request& request_;
  const StepSeconds& seconds_;
  bool fits_ = false, own_ = false;
  bool host_short_ = false;        // the device would do, the node's memory does not
  std::int64_t high_ = 0, host_ = 0;
  double deficit_ = 0;
  std::optional<double> step_;
  int estimates_ = 0;
};

void cheapest_first(std::vector<Tried>& tried) {
  std::stable_sort(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) { return a.cost < b.cost; });
}

// Of settings made with the same levers, the cheapest that suffices says it all; a further lever on top of one that suffices must pay.
std::vector<Advice> pick(std::vector<Tried>& tried, std::size_t most) {
  cheapest_first(tried);
  std::vector<Advice> out;
  std::set<std::set<std::string>> seen;
  for (Tried& t : tried) {
    const bool idle = std::any_of(tried.begin(), tried.end(), [&](const Tried& other) {
      return other.names.size() < t.names.size() && std::includes(t.names.begin(), t.names.end(), other.names.begin(), other.names.end()) && other.cost < t.cost + 0.05;
    });
    if (out.size() < most && !idle && seen.insert(t.names).second) out.push_back(std::move(t.advice));
  }
  return out;
}

}  // namespace

std::vector<Advice> advise(const Request& request, const StepSeconds& seconds, std::size_t most) {
  Search search(request, seconds);
  if (search.fits()) return {};
  std::vector<Tried> layer, enough, partial;
  const auto extend = [&](const Tried* from, const job::Job& job, const job::Plan& plan, std::vector<Tried>& next) {
    for (const Lever& lever : levers_of(job, plan, request.model)) {
      if (from && from->names.contains(lever.name)) continue;
      Tried t;
      if (!search.attempt(from, lever, t)) continue;
      (t.advice.makes_it_fit ? enough : next).push_back(std::move(t));
    }
  };
  extend(nullptr, request.job, request.plan, layer);
  // A single answer leaves no choice, and one that costs half as much again is not the last word: two cheap settings together may be better.
  const auto satisfied = [&] {
    std::set<std::set<std::string>> ways;
    double least = 1e9;
    for (const Tried& t : enough) {
      ways.insert(t.names);
      least = std::min(least, t.cost);
    }
    return ways.size() >= 3 && least < 0.5;
  };
  const auto without_hardware = [&] { return std::any_of(enough.begin(), enough.end(), [](const Tried& t) { return !t.names.contains("ranks"); }); };
  for (int depth = 2; depth <= 3 && !satisfied() && !(depth == 3 && without_hardware()) && !layer.empty() && !search.exhausted(); ++depth) {
    partial = layer;
    // Start from what frees most for its cost; a beam of eight keeps the number of estimates bounded.
    std::stable_sort(layer.begin(), layer.end(), [&](const Tried& a, const Tried& b) {
      const auto worth = [&](const Tried& t) { return std::min(1.0, static_cast<double>(t.advice.frees) / std::max(1.0, search.deficit())) / (0.1 + t.cost); };
      return worth(a) > worth(b);
    });
    if (layer.size() > 8) layer.resize(8);
    std::vector<Tried> next;
    for (const Tried& t : layer) extend(&t, t.advice.job, t.advice.plan, next);
    layer = std::move(next);
  }
  if (!enough.empty()) return pick(enough, most);
  partial.insert(partial.end(), layer.begin(), layer.end());
  std::stable_sort(partial.begin(), partial.end(), [](const Tried& a, const Tried& b) { return a.advice.frees > b.advice.frees; });
  std::vector<Advice> out;
  std::set<std::set<std::string>> seen;
  for (Tried& t : partial)
    if (out.size() < most && seen.insert(t.names).second) out.push_back(std::move(t.advice));
  return out;
}

std::vector<Advice> hints(const Request& request, const StepSeconds& seconds) {
  Search search(request, seconds);
  std::vector<Advice> out;
  if (search.fits()) return out;
  // With everything that costs no more than time: recomputation, one sequence at a time, a loss without logits.
  for (const Lever& hint : hints_of(request.job, request.plan)) {
    Tried alone, with;
    const bool freed = search.attempt(nullptr, hint, alone);
    alone.advice.slower.reset();   // of other training
    alone.advice.costs.clear();
    if (freed && alone.advice.makes_it_fit) {
      out.push_back(std::move(alone.advice));
      continue;
    }
    for (const Lever& more : levers_of(hint.job, hint.plan, request.model)) {
      if (more.name != "checkpointing" && more.name != "micro batch" && more.name != "loss") continue;
      if (!freed) break;
      Tried next;
      if (!search.attempt(&alone, more, next) || !next.advice.makes_it_fit) continue;
      next.advice.slower.reset();
      out.push_back(std::move(next.advice));
      break;
    }
  }
  return out;
}

std::string to_words(const Advice& a) {
  std::vector<std::string> parts;
  for (const Change& c : a.changes) {
    std::string key = c.key;
    for (const char* start : {"/plan/", "/job/"})
      if (key.starts_with(start)) key.erase(0, std::string_view(start).size());
    std::replace(key.begin(), key.end(), '/', '.');
    parts.push_back(fmt::format("{} {} -> {}", key, c.from, c.to));
  }
  std::string text = join(parts, ", ") + ": frees " + format_gib(static_cast<double>(a.for_host ? a.frees_host : a.frees));
  if (a.for_host) text += " of the host, a node";
  if (a.slower) {
    const double percent = std::abs(*a.slower) * 100;
    text += percent < 1 ? ", about as fast" : fmt::format(", {:.0f} % {} GPU time a step", percent, *a.slower > 0 ? "more" : "less");
    if (percent >= 1) text += " (" + join(a.costs, "; ") + ")";
  }
  if (!a.makes_it_fit) text += ", not enough";
  if (!a.condition.empty()) text += ", needs " + a.condition;
  return text;
}

}  // namespace shardfit::memory
