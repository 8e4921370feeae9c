#include "selector/search/search.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <tuple>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/memory/outlook.hpp"
#include "selector/memory/terms.hpp"
#include "selector/model/model.hpp"
#include "selector/search/bounds.hpp"
#include "selector/search/candidates.hpp"

namespace shardfit::search {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeastOfBound = 0.7;  // of what a replay finds, what may be certain at the least (memory's bounds)
constexpr double kFrontStep = 0.98;    // a point of the Pareto front is at least 2 % faster than the one before

// A plan that several offers share, with its memory once it is known.
struct Entry {
  job::Plan plan;
  double floor = 0;
  int family = -1;                         // equal but for the micro batch; -1: a plan of its own
  std::optional<memory::Outlook> outlook;  // before any replay
  std::unique_ptr<memory::Result> memory;  // judged without a host
  std::unique_ptr<Error> refused;          // by the framework's rules
};

// Entries that differ in the micro batch alone, smallest first. What does not fit at one micro batch does not fit at a
// larger one.
struct Family {
  std::vector<int> entries;
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t no_from = kNone;      // smallest micro batch known not to fit
  std::int64_t unsure_from = kNone;  // smallest known not to fit for sure
};

struct PlanSet;

// What one replay tells of its relatives. The moment of its peak comes in every run of the same layout: there the
// sharded terms are as large as the shards are few, the activations as large as the micro batch, the rest stays. So the
// sum is a lower bound of the relative's peak.
struct Lesson {
  const PlanSet* from = nullptr;
  double shards = 1, micro_batch = 1;
  double fixed = 0, sharded = 0, scaling = 0;  // bytes; times shards; a sequence of the micro batch
  double gathered = 0;                         // parameters of other ranks: no less with more ranks
  double unclear = 0;  // grows with the micro batch at most in proportion; on other sizes anything

  // Least bytes of a relative.
  double bound(const PlanSet& set, double its_shards, double its_micro) const {
    double bytes = fixed + sharded / its_shards + scaling * its_micro;
    if (its_shards >= shards) bytes += gathered;
    if (from == &set) return 0.99 * (bytes + unclear * std::min(1.0, its_micro / micro_batch));  // rounding to segments
    return 0.9 * bytes;  // other workspaces and kernels
  }
};

using LayoutKey =
    std::tuple<int, int, bool, bool, std::int64_t, std::int64_t, std::int64_t, int, int, int, int, std::string, int>;

struct PlanSet {
  const hardware::Device* device = nullptr;
  double capacity = 0;  // bytes; 0 = unknown
  std::vector<Entry> entries;
  std::vector<Family> families;
};

struct Cell {
  std::uint32_t choice = 0;
  PlanSet* set = nullptr;
  Entry* entry = nullptr;
  timing::StepTime time;
  std::int64_t steps = 0;
  double cost = 0, seconds = 0, run = 0;
};

// A single micro step needs no buffer to accumulate in: with it a larger micro batch may need less.
bool accumulates(const job::Plan& p) { return p.gradient_accumulation > 1; }

bool same_layout(const job::Plan& a, const job::Plan& b) {
  return a.sharding.stage == b.sharding.stage && a.sharding.shard_degree == b.sharding.shard_degree &&
         a.sharding.replicate_degree == b.sharding.replicate_degree &&
         a.sharding.reshard_after_forward == b.sharding.reshard_after_forward &&
         a.tensor_parallel == b.tensor_parallel && a.pipeline.degree == b.pipeline.degree &&
         a.expert_parallel == b.expert_parallel && a.offload.parameters == b.offload.parameters &&
         a.offload.gradients == b.offload.gradients && a.offload.optimizer == b.offload.optimizer;
}

void link_families(PlanSet& set) {
  for (int i = 0; i < static_cast<int>(set.entries.size()); ++i) {
    auto& entry = set.entries[static_cast<size_t>(i)];
    const bool continues = !set.families.empty() && [&] {
      const auto& last = set.entries[static_cast<size_t>(set.families.back().entries.back())];
      return last.plan.checkpointing.kind == entry.plan.checkpointing.kind && same_layout(last.plan, entry.plan) &&
             accumulates(last.plan) == accumulates(entry.plan) && last.plan.micro_batch < entry.plan.micro_batch;
    }();
    if (!continues) set.families.emplace_back();
    entry.family = static_cast<int>(set.families.size()) - 1;
    set.families.back().entries.push_back(i);
  }
}

// Layouts that differ in size and micro batch alone share a key; so do GPUs whose kernels keep the same tensors (one
// generation).
LayoutKey layout_key(const job::Plan& p, const hardware::Device& device) {
  return {p.sharding.stage,
          static_cast<int>(p.sharding.reshard_after_forward),
          p.sharding.stage > 0 && p.sharding.replicate_degree > 1,
          accumulates(p),
          p.tensor_parallel,
          p.pipeline.degree,
          p.expert_parallel,
          static_cast<int>(p.offload.parameters),
          static_cast<int>(p.offload.gradients),
          static_cast<int>(p.offload.optimizer),
          static_cast<int>(p.offload.activations),
          p.checkpointing.kind,
          device.is_cpu ? -1 : static_cast<int>(device.compute_capability_number())};
}

double shards_of(const job::Plan& p) { return static_cast<double>(p.sharding.shard_degree); }

Lesson lesson_of(const PlanSet& set, const job::Job& job, const job::Plan& plan, const memory::Result& r) {
  using memory::Term;
  Lesson l{.from = &set, .shards = shards_of(plan), .micro_batch = static_cast<double>(plan.micro_batch)};
  const int stage = plan.sharding.stage;
  for (const auto& term : r.memory.terms) {
    const double bytes = static_cast<double>(term.bytes);
    const auto is = [&](Term t) { return term.name == memory::name_of(t); };
    const auto by_stage = [&](int from) {
      (stage >= from ? l.sharded : l.fixed) += stage >= from ? bytes * l.shards : bytes;
    };
    if (is(Term::kOptimizerStates) || is(Term::kMaster)) by_stage(1);
    else if (is(Term::kGradients)) by_stage(2);
    else if (is(Term::kParameters)) by_stage(3);
    else if (is(Term::kActivations) || is(Term::kActivationGradients) || is(Term::kRecomputed) ||
             (is(Term::kLogits) && job.loss.kind == "plain"))
      l.scaling += bytes / l.micro_batch;
    else if (is(Term::kGathered)) l.gathered += bytes;
    else if (term.name != "cached by the allocator") l.unclear += bytes;
  }
  return l;
}

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
      for (auto& entry : set.entries) price(index, set, entry);
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
    auto plans = plans_for(job_, model_, shape);
    slot->entries.reserve(plans.size());
    for (auto& plan : plans) {
      const double floor = memory_floor(sizes_, plan);
      slot->entries.push_back({.plan = std::move(plan), .floor = floor});
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
      set->entries.push_back({.plan = std::move(plan)});
    }
    out_.offers[index].cells = set->entries.size();
    for (auto& entry : set->entries) price(index, *set, entry);
    listed_.push_back(std::move(set));
  }

  // Time and cost of a cell; cells that cannot fit by the floor alone are kept for explain_failure only.
  void price(std::uint32_t index, PlanSet& set, Entry& entry) {
    if (limits_.max_nodes && entry.plan.nodes > *limits_.max_nodes) return;
    const Choice& choice = choices_[index];
    if (!limits_.exhaustive && set.capacity > 0 && entry.floor > set.capacity) return;
    Cell cell;
    cell.choice = index;
    cell.set = &set;
    cell.entry = &entry;
    try {
      cell.time = timing::step_time(*work_, entry.plan, *choice.device, &choice.offer->host,
                                    &choice.offer->interconnect, calibration_);
    } catch (const Error& e) {
      out_.offers[index].refusal = e.message + (e.remedy.empty() ? "" : "; " + e.remedy);
      out_.offers[index].refusal_code = e.code;
      return;
    }
    if (!(cell.time.step > 0) || !std::isfinite(cell.time.step)) return;
    cell.steps = duration_.steps_for(job::global_batch(entry.plan), job_.sequence_length);
    const auto needs = run_needs(job_, entry.plan, cell.time, cell.steps);
    const auto amount = choice.pricer->quick(needs);
    if (!amount || !std::isfinite(*amount)) return;
    cell.cost = *amount;
    cell.run = needs.seconds;
    cell.seconds = wall(index, needs);
    cells_.push_back(cell);
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
                                   .plan = entry.plan,
                                   .model = model_,
                                   .device = *set.device,
                                   .host = &choices_[cell.choice].offer->host};
    if (!limits_.exhaustive && is_hopeless(set, entry, at_offer, unsure_counts)) return nullptr;
    const memory::Result* bare = judge(set, entry);
    if (!bare) return nullptr;
    const auto& host = *at_offer.host;
    const bool host_matters = entry.plan.offload.any() || (host.ram_gib && static_cast<double>(bare->memory.host) >
                                                                               0.7 * *host.ram_gib * 1073741824.0);
    if (!host_matters || bare->fits == "no") return bare;
    with_host_ = memory::at_host(at_offer, *bare);
    return &with_host_;
  }

  bool is_hopeless(PlanSet& set, Entry& entry, const memory::Request& at_offer, bool unsure_counts) {
    if (!entry.memory && entry.family >= 0) {
      const auto& family = set.families[static_cast<size_t>(entry.family)];
      if (entry.plan.micro_batch >= (unsure_counts ? family.no_from : family.unsure_from)) return true;
      const auto& lesson = lessons_[layout_key(entry.plan, *set.device)];
      const double bound =
          lesson.from ? lesson.bound(set, shards_of(entry.plan), static_cast<double>(entry.plan.micro_batch)) : 0;
      if (set.capacity > 0 && (unsure_counts ? kLeastOfBound * bound : bound) > set.capacity) return true;
    }
    const memory::Outlook* outlook = look(set, entry);
    if (!outlook || outlook->fits_never() || (outlook->fits_hardly() && !unsure_counts)) return true;
    if (!entry.plan.offload.any()) return false;
    const std::string verdict = memory::host_verdict(at_offer);
    return verdict == "no" || (verdict == "unsure" && !unsure_counts);
  }

  // nullptr where the framework refuses the plan.
  const memory::Outlook* look(PlanSet& set, Entry& entry) {
    if (entry.refused) return nullptr;
    if (!entry.outlook) {
      try {
        entry.outlook = memory::outlook({.job = job_, .plan = entry.plan, .model = model_, .device = *set.device});
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
            memory::estimate_memory({.job = job_, .plan = entry.plan, .model = model_, .device = *set.device}));
      } catch (const Error& e) {
        entry.refused = std::make_unique<Error>(e);
        return nullptr;
      }
      if (entry.family >= 0) {
        lessons_[layout_key(entry.plan, *set.device)] = lesson_of(set, job_, entry.plan, *entry.memory);
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
    if (never) family.no_from = std::min(family.no_from, entry.plan.micro_batch);
    if (never || hardly) family.unsure_from = std::min(family.unsure_from, entry.plan.micro_batch);
  }

  Found found(const Cell& cell, const memory::Result& memory) const {
    Found f{.choice = cell.choice,
            .plan = cell.entry->plan,
            .memory = memory,
            .time = cell.time,
            .needs = run_needs(job_, cell.entry->plan, cell.time, cell.steps),
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
            entry.plan.checkpointing.kind == "full")
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
    result.least_memory = Found{.choice = index, .plan = entry->plan, .memory = *entry->memory};
    if (entry->plan.offload.any())
      result.least_memory->memory = memory::at_host({.job = job_,
                                                     .plan = entry->plan,
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
