#include "selector/search/search.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/outlook.hpp"
#include "selector/model/model.hpp"
#include "selector/search/bounds.hpp"
#include "selector/search/candidates.hpp"
#include "selector/search/plan_sets.hpp"

namespace shardfit::search {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeastOfBound = 0.7;  // of what a replay finds, what may be certain at the least (memory's bounds)
constexpr double kFrontStep = 0.98;    // a point of the Pareto front is at least 2 % faster than the one before

struct Cell {
  std::uint32_t choice = 0;
  PlanSet* set = nullptr;
  Entry* entry = nullptr;
  const timing::StepTime* time = nullptr;
  std::int64_t steps = 0;
  double cost = 0, seconds = 0, run = 0;
};

// Offers whose steps take equal time share these: regions of one seller have the same machines.
struct Place {
  const timing::StepTimer timer;
  std::map<const PlanSet*, std::vector<std::optional<timing::StepTime>>> times;  // by entry
  explicit Place(timing::StepTimer t) : timer(std::move(t)) {}
};

struct Timed {
  const timing::StepTimer& timer;
  std::vector<std::optional<timing::StepTime>>& times;
};

class Searcher {
 public:
  Searcher(const job::Job& job, const model::Model& model, const Duration& duration, const std::vector<Choice>& choices,
           const Limits& limits, const timing::Calibration* calibration)
      : job_(job),
        model_(model),
        duration_(duration),
        choices_(choices),
        limits_(limits),
        calibration_(calibration),
        sizes_(sizes_of(job, model)),
        work_(timing::prepare(job, model)) {
    out_.offers.resize(choices.size());
  }

  Outcome run() {
    for (std::uint32_t i = 0; i < choices_.size(); ++i) gather(i);
    out_.cells = cells_.size();
    struct Key {
      double cost, seconds;
      std::uint32_t cell;
      auto operator<=>(const Key&) const = default;
    };
    std::vector<Key> keys(cells_.size());
    for (std::uint32_t i = 0; i < keys.size(); ++i) keys[i] = {cells_[i].cost, cells_[i].seconds, i};
    std::sort(keys.begin(), keys.end(), std::less<>());
    std::vector<std::uint32_t> order(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) order[i] = keys[i].cell;
    double front_seconds = kInfinity;
    for (const auto i : order) visit(cells_[i], front_seconds);
    take_tight_ones();
    for (std::uint32_t i = 0; i < choices_.size(); ++i) explain_failure(i, order);
    return std::move(out_);
  }

 private:
  void gather(std::uint32_t index) {
    const Choice& choice = choices_[index];
    if (!choice.offer->plans.empty()) {
      gather_listed(index);
      return;
    }
    for (const auto& [nodes, gpus] : sizes_of(*choice.offer, limits_.max_nodes)) {
      PlanSet& set = plan_set(choice, nodes, gpus);
      out_.offers[index].cells += set.entries.size();
      price(index, set);
    }
  }

  PlanSet& plan_set(const Choice& choice, std::int64_t nodes, std::int64_t gpus) {
    Shape shape{choice.device->key, nodes, gpus, {}, choice.offer->host.nvme.has_value()};
    if (choice.device->is_cpu) shape.device_memory_gib = choice.offer->device_memory_gib;
    auto& slot = sets_[shape];
    if (slot) return *slot;
    slot = std::make_unique<PlanSet>();
    slot->device = choice.device;
    slot->capacity =
        choice.device->is_cpu ? shape.device_memory_gib.value_or(0) * 1073741824.0 : choice.device->memory_bytes();
    slot->plans = plans_for(job_, model_, shape);
    slot->entries.reserve(slot->plans.size());
    for (const auto& plan : slot->plans) {
      slot->entries.push_back({.plan = &plan, .floor = memory_floor(sizes_, plan)});
    }
    link_families(*slot);
    return *slot;
  }

  void gather_listed(std::uint32_t index) {
    const Choice& choice = choices_[index];
    auto set = std::make_unique<PlanSet>();
    set->device = choice.device;
    for (size_t i = 0; i < choice.offer->plans.size(); ++i) {
      const std::string where = "/offers/" + std::to_string(choice.index) + "/plans/" + std::to_string(i);
      job::Plan plan = job::parse_plan(choice.offer->plans[i], where);
      const hardware::Device& device = hardware::find_device(plan.gpu, where + "/gpu");
      if (&device != choice.device)
        throw Error("conflict", where + "/gpu", "is " + device.key + ", but the offer has " + choice.device->key,
                    "make both the same device");
      if (plan.nodes > choice.offer->max_nodes || plan.gpus_per_node > choice.offer->gpus_per_node)
        throw Error("out_of_range", where,
                    "needs " + std::to_string(plan.nodes) + " nodes with " + std::to_string(plan.gpus_per_node) +
                        " GPUs, but the offer has " + std::to_string(choice.offer->max_nodes) + " with " +
                        std::to_string(choice.offer->gpus_per_node),
                    "correct the plan or the offer");
      if (device.is_cpu && !plan.device_memory_gib) plan.device_memory_gib = choice.offer->device_memory_gib;
      try {
        job::check_plan_against_job(job_, plan);
      } catch (Error& e) {
        throw Error(e.code, where, e.message, e.remedy);
      }
      if (const auto why = runtime_refuses(job_, plan, &model_)) {
        out_.offers[index].refusal = *why;
        out_.offers[index].refusal_code = "not_supported";
        continue;
      }
      set->plans.push_back(std::move(plan));
    }
    for (const auto& plan : set->plans) set->entries.push_back({.plan = &plan});
    out_.offers[index].cells = set->entries.size();
    price(index, *set);
    listed_.push_back(std::move(set));
  }

  // Time and cost of a cell; cells that cannot fit by the floor alone are kept for explain_failure only.
  void price(std::uint32_t index, PlanSet& set) {
    auto times = timed(index, set);
    for (auto& entry : set.entries) price(index, set, entry, times);
  }

  void price(std::uint32_t index, PlanSet& set, Entry& entry, Timed& times) {
    if (limits_.max_nodes && entry.plan->nodes > *limits_.max_nodes) return;
    const Choice& choice = choices_[index];
    if (!limits_.exhaustive && set.capacity > 0 && entry.floor > set.capacity) return;
    Cell cell;
    cell.choice = index;
    cell.set = &set;
    cell.entry = &entry;
    const auto& time = time_of(index, set, entry, times);
    if (!time) return;
    cell.time = &*time;
    if (!(time->step > 0) || !std::isfinite(time->step)) return;
    cell.steps = duration_.steps_for(job::global_batch(*entry.plan), job_.sequence_length);
    const auto needs = run_needs(job_, *entry.plan, *time, cell.steps);
    const auto amount = choice.pricer->quick(needs);
    if (!amount || !std::isfinite(*amount)) return;
    cell.cost = *amount;
    cell.run = needs.seconds;
    cell.seconds = wall(index, needs);
    cells_.push_back(cell);
  }

  // What is known of the times of a set's plans at an offer.
  Timed timed(std::uint32_t index, const PlanSet& set) {
    const Choice& choice = choices_[index];
    const auto site = timing::site_of(&choice.offer->host, &choice.offer->interconnect);
    auto& place = places_[{choice.device, site}];
    if (!place)
      place = std::make_unique<Place>(
          timing::StepTimer(*work_, *choice.device, &choice.offer->host, &choice.offer->interconnect, calibration_));
    auto& times = place->times[&set];
    times.resize(set.entries.size());
    return {place->timer, times};
  }

  // None where they cannot be told (why: the offer's refusal).
  const std::optional<timing::StepTime>& time_of(std::uint32_t index, const PlanSet& set, const Entry& entry,
                                                 Timed& timed) {
    auto& time = timed.times[static_cast<std::size_t>(&entry - set.entries.data())];
    if (time) return time;
    try {
      time = timed.timer(*entry.plan);
    } catch (const Error& e) {
      out_.offers[index].refusal = e.message + (e.remedy.empty() ? "" : "; " + e.remedy);
      out_.offers[index].refusal_code = e.code;
    }
    return time;
  }

  // Queue + start + run + restarts: linear in the run, so two full answers of the pricer give the line.
  double wall(std::uint32_t index, const pricing::RunNeeds& needs) {
    auto& line = lines_[index];
    if (!line) {
      pricing::RunNeeds probe = needs;
      probe.seconds_low = probe.seconds_high = 0;
      probe.seconds = 1000;
      const double one = choices_[index].pricer->cost(probe).seconds;
      probe.seconds = 2000;
      const double two = choices_[index].pricer->cost(probe).seconds;
      line = {one - (two - one), (two - one) / 1000};
    }
    return line->first + line->second * needs.seconds;
  }

  bool within(const Cell& cell) const {
    const auto& most = choices_[cell.choice].offer->max_seconds;
    return cell.seconds <= limits_.deadline_seconds && cell.cost <= limits_.max_cost && (!most || cell.run <= *most);
  }

  void visit(Cell& cell, double& front_seconds) {
    auto& result = out_.offers[cell.choice];
    const bool inside = within(cell);
    const bool outside = choices_[cell.choice].outside;
    const bool for_best = inside && !outside && !result.best,
               for_front = inside && !outside && cell.seconds < kFrontStep * front_seconds,
               for_cheapest = !result.cheapest;
    if (!limits_.exhaustive && !for_best && !for_front && !for_cheapest) return;
    const memory::Result* memory = replay(cell, limits_.allow_unsure || (inside && !result.unsure));
    if (!memory) return;
    const bool fits = memory->fits == "yes" || (limits_.allow_unsure && memory->fits == "unsure");
    if (!fits) {
      if (memory->fits == "unsure" && inside && !result.unsure) result.unsure = found(cell, *memory);
      return;
    }
    if (for_cheapest) result.cheapest = found(cell, *memory);
    if (inside && !outside && is_tight(*memory)) {
      if (!result.tight) result.tight = found(cell, *memory);
      return;
    }
    if (for_best) result.best = found(cell, *memory);
    if (for_front) {
      front_seconds = cell.seconds;
      out_.front.push_back(found(cell, *memory));
    }
  }

  // Within 5 % of the device's memory the allocator frees and retries: published steps there took up to twice as long,
  // so such a plan is taken only where an offer has no other.
  static bool is_tight(const memory::Result& r) {
    const double outside_allocator = static_cast<double>(r.memory.device_peak - r.memory.reserved_peak);
    return r.capacity_bytes > 0 &&
           static_cast<double>(r.memory.allocated_peak) + std::max(outside_allocator, 0.0) > 0.95 * r.capacity_bytes;
  }

  void take_tight_ones() {
    bool added = false;
    for (auto& result : out_.offers)
      if (!result.best && result.tight) {
        result.best = result.tight;
        out_.front.push_back(*result.tight);
        added = true;
      }
    if (!added) return;
    std::stable_sort(out_.front.begin(), out_.front.end(), [](const Found& a, const Found& b) {
      return a.cost != b.cost ? a.cost < b.cost : a.seconds < b.seconds;
    });
    double seconds = kInfinity;
    std::erase_if(out_.front, [&](const Found& f) {
      if (f.seconds >= seconds) return true;
      seconds = f.seconds;
      return false;
    });
  }

  // The memory verdict of a cell at its offer; nullptr where it is known not to fit, or where the framework refuses the
  // plan. Where "unsure" is of no use, also where it cannot be better than that.
  const memory::Result* replay(const Cell& cell, bool unsure_counts) {
    Entry& entry = *cell.entry;
    PlanSet& set = *cell.set;
    const memory::Request at_offer{.job = job_,
                                   .plan = *entry.plan,
                                   .model = model_,
                                   .device = *set.device,
                                   .host = &choices_[cell.choice].offer->host};
    if (!limits_.exhaustive && is_hopeless(set, entry, at_offer, unsure_counts)) return nullptr;
    const memory::Result* bare = judge(set, entry);
    if (!bare) return nullptr;
    const auto& host = *at_offer.host;
    const bool host_matters = entry.plan->offload.any() || (host.ram_gib && static_cast<double>(bare->memory.host) >
                                                                                0.7 * *host.ram_gib * 1073741824.0);
    if (!host_matters || bare->fits == "no") return bare;
    with_host_ = memory::at_host(at_offer, *bare);
    return &with_host_;
  }

  bool is_hopeless(PlanSet& set, Entry& entry, const memory::Request& at_offer, bool unsure_counts) {
    if (!entry.memory && entry.family >= 0) {
      const auto& family = set.families[static_cast<size_t>(entry.family)];
      if (entry.plan->micro_batch >= (unsure_counts ? family.no_from : family.unsure_from)) return true;
      const auto& lesson = lessons_[layout_key(*entry.plan, *set.device)];
      const double bound =
          lesson.from ? lesson.bound(set, shards_of(*entry.plan), static_cast<double>(entry.plan->micro_batch)) : 0;
      if (set.capacity > 0 && (unsure_counts ? kLeastOfBound * bound : bound) > set.capacity) return true;
    }
    const memory::Outlook* outlook = look(set, entry);
    if (!outlook || outlook->fits_never() || (outlook->fits_hardly() && !unsure_counts)) return true;
    if (!entry.plan->offload.any()) return false;
    const std::string verdict = memory::host_verdict(at_offer);
    return verdict == "no" || (verdict == "unsure" && !unsure_counts);
  }

  // nullptr where the framework refuses the plan.
  const memory::Outlook* look(PlanSet& set, Entry& entry) {
    if (entry.refused) return nullptr;
    if (!entry.outlook) {
      try {
        entry.outlook = memory::outlook({.job = job_, .plan = *entry.plan, .model = model_, .device = *set.device});
      } catch (const Error& e) {
        entry.refused = std::make_unique<Error>(e);
        return nullptr;
      }
      learn(set, entry, entry.outlook->fits_never(), entry.outlook->fits_hardly());
    }
    return &*entry.outlook;
  }

  // Judged without a host, once per (plan, device).
  const memory::Result* judge(PlanSet& set, Entry& entry) {
    if (entry.refused) return nullptr;
    if (!entry.memory) {
      ++out_.replays;
      try {
        entry.memory = std::make_unique<memory::Result>(
            memory::estimate_memory({.job = job_, .plan = *entry.plan, .model = model_, .device = *set.device}));
      } catch (const Error& e) {
        entry.refused = std::make_unique<Error>(e);
        return nullptr;
      }
      if (entry.family >= 0) {
        lessons_[layout_key(*entry.plan, *set.device)] = lesson_of(set, job_, *entry.plan, *entry.memory);
      }
      // Offloaded plans are "unsure" without a host.
      const bool hardly = entry.memory->capacity_bytes > 0 && entry.memory->needed_high > entry.memory->capacity_bytes;
      learn(set, entry, entry.memory->fits == "no", hardly);
    }
    return &*entry.memory;
  }

  static void learn(PlanSet& set, const Entry& entry, bool never, bool hardly) {
    if (entry.family < 0) return;
    auto& family = set.families[static_cast<size_t>(entry.family)];
    if (never) family.no_from = std::min(family.no_from, entry.plan->micro_batch);
    if (never || hardly) family.unsure_from = std::min(family.unsure_from, entry.plan->micro_batch);
  }

  Found found(const Cell& cell, const memory::Result& memory) const {
    Found f{.choice = cell.choice,
            .plan = *cell.entry->plan,
            .memory = memory,
            .time = *cell.time,
            .needs = run_needs(job_, *cell.entry->plan, *cell.time, cell.steps),
            .steps = cell.steps};
    f.tight = is_tight(memory);
    f.cost = cell.cost;
    f.seconds = cell.seconds;
    return f;
  }

  void explain_failure(std::uint32_t index, const std::vector<std::uint32_t>& order) {
    auto& result = out_.offers[index];
    if (result.best || choices_[index].outside) return;
    if (result.cheapest) {  // something fits, but outside the limits: what is the fastest?
      std::vector<std::uint32_t> mine;
      for (const auto i : order)
        if (cells_[i].choice == index) mine.push_back(i);
      std::stable_sort(mine.begin(), mine.end(), [&](auto a, auto b) { return cells_[a].seconds < cells_[b].seconds; });
      for (const auto i : mine) {
        const auto* memory = replay(cells_[i], limits_.allow_unsure);
        if (memory && (memory->fits == "yes" || (limits_.allow_unsure && memory->fits == "unsure"))) {
          result.fastest = found(cells_[i], *memory);
          break;
        }
      }
      return;
    }
    if (!result.unsure) find_least_memory(index);
  }

  // Where nothing fits: of the smallest micro batches the plan whose need is nearest to the capacity.
  void find_least_memory(std::uint32_t index) {
    const Choice& choice = choices_[index];
    if (!choice.offer->plans.empty()) {
      std::vector<std::pair<PlanSet*, Entry*>> mine;
      for (auto& set : listed_)
        for (auto& entry : set->entries)
          if (std::any_of(cells_.begin(), cells_.end(),
                          [&](const Cell& c) { return c.choice == index && c.entry == &entry; }))
            mine.emplace_back(set.get(), &entry);
      take_least(index, mine);
      return;
    }
    const auto sizes = sizes_of(*choice.offer, limits_.max_nodes);
    for (auto it = sizes.rbegin(); it != sizes.rend(); ++it) {
      PlanSet& set = plan_set(choice, it->first, it->second);
      std::vector<std::pair<PlanSet*, Entry*>> smallest;
      for (const auto& family : set.families)
        if (auto& entry = set.entries[static_cast<size_t>(family.entries.front())];
            entry.plan->checkpointing.kind == "full")
          smallest.emplace_back(&set, &entry);
      take_least(index, smallest);
      if (out_.offers[index].least_memory) break;  // the largest size that has a plan at all
    }
  }

  // The first of those that need least; in order of their lower bounds, so that most are never replayed.
  void take_least(std::uint32_t index, const std::vector<std::pair<PlanSet*, Entry*>>& plans) {
    auto& result = out_.offers[index];
    struct Bound {
      double least;
      std::size_t plan;
    };
    std::vector<Bound> order;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const auto* outlook = look(*plans[i].first, *plans[i].second);
      if (outlook) order.push_back({outlook->least, i});
    }
    std::stable_sort(order.begin(), order.end(), [](const Bound& a, const Bound& b) { return a.least < b.least; });
    double least = kInfinity;
    std::size_t found_at = plans.size();
    for (const auto& bound : order) {
      if (bound.least > least && !limits_.exhaustive) break;
      auto& [set, entry] = plans[bound.plan];
      const memory::Result* r = judge(*set, *entry);
      if (!r) continue;
      const double need = static_cast<double>(r->memory.device_peak_high);
      if (need > least || (need == least && bound.plan > found_at)) continue;
      least = need;
      found_at = bound.plan;
    }
    if (found_at == plans.size()) {
      for (const auto& [set, entry] : plans)
        if (entry->refused && result.refusal.empty())
          result.refusal = entry->refused->message, result.refusal_code = entry->refused->code;
      return;
    }
    const auto& [set, entry] = plans[found_at];
    result.least_memory = Found{.choice = index, .plan = *entry->plan, .memory = *entry->memory};
    if (entry->plan->offload.any())
      result.least_memory->memory = memory::at_host({.job = job_,
                                                     .plan = *entry->plan,
                                                     .model = model_,
                                                     .device = *set->device,
                                                     .host = &choices_[index].offer->host},
                                                    *entry->memory);
  }

  const job::Job& job_;
  const model::Model& model_;
  const Duration& duration_;
  const std::vector<Choice>& choices_;
  const Limits& limits_;
  const timing::Calibration* calibration_;
  Sizes sizes_;
  std::shared_ptr<const timing::Work> work_;
  std::map<Shape, std::unique_ptr<PlanSet>> sets_;
  std::vector<std::unique_ptr<PlanSet>> listed_;
  std::map<std::pair<const hardware::Device*, timing::Site>, std::unique_ptr<Place>> places_;
  std::map<std::uint32_t, std::optional<std::pair<double, double>>> lines_;
  std::deque<Cell> cells_;  // many: grows without moving
  std::map<LayoutKey, Lesson> lessons_;
  memory::Result with_host_;
  Outcome out_;
};

}  // namespace

pricing::RunNeeds run_needs(const job::Job& job, const job::Plan& plan, const timing::StepTime& time,
                            std::int64_t steps) {
  pricing::RunNeeds n;
  n.gpus = plan.gpus();
  n.seconds = time.step * static_cast<double>(steps);
  n.seconds_low = time.low * static_cast<double>(steps);
  n.seconds_high = time.high * static_cast<double>(steps);
  n.storage_gb = job.storage_gb;
  n.egress_gb = job.egress_gb;
  return n;
}

Outcome search(const job::Job& job, const model::Model& model, const Duration& duration,
               const std::vector<Choice>& choices, const Limits& limits, const timing::Calibration* calibration) {
  return Searcher(job, model, duration, choices, limits, calibration).run();
}

}  // namespace shardfit::search
