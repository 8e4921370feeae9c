#include "selector/decide/decide.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/decide/confidence.hpp"
#include "selector/decide/eligibility.hpp"
#include "selector/decide/flips.hpp"
#include "selector/decide/rejections.hpp"
#include "selector/decide/words.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/money.hpp"
#include "selector/model/model.hpp"
#include "selector/schedule/supported.hpp"
#include "selector/search/adapter_targets.hpp"
#include "selector/search/duration.hpp"
#include "selector/search/estimator.hpp"
#include "selector/search/model_cache.hpp"
#include "selector/search/search.hpp"
#include "selector/time/time.hpp"

namespace shardfit::decide {

namespace {

using search::Choice;
using search::Found;

struct Setup {
  const job::Job& job;
  const Options& options;
  std::string currency;
  std::vector<regions::Atom> pins;
  std::vector<Standing> standings;
  std::vector<Choice> choices;  // offers that can be priced; `Choice::index` leads back to standings
  std::vector<const search::OfferResult*> result_of;  // by standing; nullptr: not searched
};

void describe_offer(Candidate& c, const pricing::Offer& offer) {
  c.offer = offer.id;
  c.provider = offer.provider;
  c.region = offer.region;
  c.price = offer.price;
  c.offer_gpus_per_node = offer.gpus_per_node;
  c.cluster = offer.cluster;
  c.partition = offer.partition;
  c.gpu = offer.gpu;
  c.features = offer.features;
}

Candidate candidate_of(const Setup& setup, const model::Model& model, const Found& found, const timing::Work& work) {
  const Choice& choice = setup.choices[found.choice];
  Candidate c;
  describe_offer(c, *choice.offer);
  c.gpu = choice.device->key;
  c.plan = found.plan;
  auto estimated = search::estimate({.job = setup.job,
                                     .plan = found.plan,
                                     .model = model,
                                     .device = *choice.device,
                                     .host = &choice.offer->host,
                                     .interconnect = &choice.offer->interconnect,
                                     .calibration = setup.options.calibration,
                                     .work = &work,
                                     .memory = &found.memory});
  c.estimate = std::move(estimated.estimate);
  c.memory_why = estimated.memory_why;
  c.device_capacity_bytes = estimated.capacity_bytes;
  c.cost = choice.pricer->cost(found.needs);
  c.seconds = c.cost.seconds;
  c.seconds_low = c.cost.seconds_low;
  c.seconds_high = c.cost.seconds_high;
  c.run_seconds = found.needs.seconds;
  c.run_seconds_high = found.needs.seconds_high;
  c.steps = found.steps;
  c.flags = c.cost.flags;
  for (const auto& flag : setup.standings[choice.index].flags) c.flags.push_back(flag);
  if (found.tight) c.flags.push_back("memory within 5 % of the device: steps may be slower than predicted");
  if (c.estimate->fits != "yes")
    c.flags.push_back("memory " + c.estimate->fits + (c.memory_why.empty() ? "" : ": " + c.memory_why));
  return c;
}

bool offloads(const Found& f) { return f.plan.offload.any(); }

// Why the runner-up lost, by the two factors of a cost: speed and price.
RunnerUp runner_up_of(const Setup& setup, const Found& chosen, const Found& other) {
  RunnerUp r;
  r.offer = setup.choices[other.choice].offer->id;
  r.cost = other.cost;
  r.seconds = other.seconds;
  const double dearer = chosen.cost > 0 ? other.cost / chosen.cost - 1 : 0,
               slower = chosen.seconds > 0 ? other.seconds / chosen.seconds : 1;
  const double hourly =
      (other.cost / std::max(other.seconds, 1e-9)) / std::max(chosen.cost / std::max(chosen.seconds, 1e-9), 1e-30);
  r.why = dearer < 0 ? "costs " + percent_words(-dearer) + " less but breaks a limit"
                     : "costs " + percent_words(dearer) + " more";
  r.why += slower > 1.02   ? fmt::format(": {:.2f} times the hours at {:.2f} times the price an hour", slower, hourly)
           : slower < 0.98 ? fmt::format(": {:.2f} times as fast at {:.2f} times the price an hour", 1 / slower, hourly)
                           : fmt::format(": as fast, at {:.2f} times the price an hour", hourly);
  return r;
}

void rank(const Setup& setup, const model::Model& model, const search::Duration& duration,
          const search::Outcome& outcome, const search::Limits& limits, Decision& d) {
  std::vector<const Found*> best;  // of each offer that may be chosen, cheapest first
  for (size_t i = 0; i < setup.choices.size(); ++i)
    if (setup.standings[setup.choices[i].index].may_be_chosen() && outcome.offers[i].best)
      best.push_back(&*outcome.offers[i].best);
  std::stable_sort(best.begin(), best.end(), [](const Found* a, const Found* b) {
    return a->cost != b->cost ? a->cost < b->cost : a->seconds < b->seconds;
  });
  if (best.empty()) return;
  const auto work = timing::prepare(setup.job, model);
  const Found& chosen = *best.front();
  d.chosen = candidate_of(setup, model, chosen, *work);
  d.decision = "chosen";
  for (size_t i = 1; i < best.size(); ++i)
    if (best[i]->cost < chosen.cost * (1 + setup.options.tie_percent / 100))
      d.tied_with.push_back(setup.choices[best[i]->choice].offer->id);
  if (!d.tied_with.empty()) d.decision = "tie";

  std::vector<Rival> rivals;
  for (size_t i = 1; i < best.size(); ++i) {
    const bool same_device = setup.choices[best[i]->choice].device == setup.choices[chosen.choice].device;
    rivals.push_back({std::log(std::max(best[i]->cost, 1e-30) / std::max(chosen.cost, 1e-30)), best[i]->time.sigma,
                      error_correlation(same_device, offloads(*best[i]) == offloads(chosen))});
  }
  if (!rivals.empty()) d.confidence = confidence(chosen.time.sigma, rivals);

  const auto room = [&] { return static_cast<int>(d.candidates.size()) < setup.options.top; };
  std::vector<std::string> shown;
  for (const auto& f : outcome.front)
    if (room()) {
      d.candidates.push_back(candidate_of(setup, model, f, *work));
      shown.push_back(d.candidates.back().offer);
    }
  for (const Found* f : best)
    if (room() && std::find(shown.begin(), shown.end(), setup.choices[f->choice].offer->id) == shown.end())
      d.candidates.push_back(candidate_of(setup, model, *f, *work));

  if (best.size() > 1) {
    d.runner_up = runner_up_of(setup, chosen, *best[1]);
    d.flips = flips_between({setup.job, model, duration, setup.choices, chosen, *best[1], setup.options.calibration});
  }
  // A limit that costs money: what would be chosen without it.
  const Found* free = nullptr;
  for (size_t i = 0; i < setup.choices.size(); ++i) {
    const auto& cheapest = outcome.offers[i].cheapest;
    if (setup.standings[setup.choices[i].index].may_be_chosen() && cheapest && (!free || cheapest->cost < free->cost))
      free = &*cheapest;
  }
  if (free && free->cost < chosen.cost * (1 - 1e-9) && free->seconds > limits.deadline_seconds)
    d.flips.push_back(
        {"deadline", limits.deadline_seconds, std::ceil(free->seconds), "s", setup.choices[free->choice].offer->id});
  for (const auto& line : d.chosen->cost.assumed) d.assumed.push_back(line);
}

// A job that states pins alone: no time and no cost can be told, so offers rank by the price of a GPU hour.
void rank_by_price(const Setup& setup, Decision& d) {
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < setup.standings.size(); ++i) {
    const auto& s = setup.standings[i];
    if (!s.may_be_chosen() || !s.pricer) continue;
    pricing::RunNeeds needs{.gpus = std::max<std::int64_t>(s.offer->gpus_per_node, 1), .seconds = 3600};
    const double one = s.pricer->quick(needs).value_or(0);
    needs.seconds = 7200;
    order.emplace_back((s.pricer->quick(needs).value_or(0) - one) / static_cast<double>(needs.gpus), i);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [hourly, i] : order) {
    if (static_cast<int>(d.candidates.size()) >= std::max(setup.options.top, 1)) break;
    Candidate c;
    describe_offer(c, *setup.standings[i].offer);
    c.cost.currency = setup.currency;
    c.cost.rule = "not_estimated";
    c.cost.reason = "the job names no model";
    c.flags = setup.standings[i].flags;
    for (const auto& flag : setup.standings[i].pricer->flags()) c.flags.push_back(flag);
    c.flags.push_back("ranked by the price of a GPU hour: " + money_words(hourly, setup.currency));
    d.candidates.push_back(std::move(c));
  }
  if (d.candidates.empty()) return;
  d.chosen = d.candidates.front();
  d.decision = "chosen";
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i].first < order[0].first * (1 + setup.options.tie_percent / 100))
      d.tied_with.push_back(setup.standings[order[i].second].offer->id);
  if (!d.tied_with.empty()) d.decision = "tie";
  d.assumed.push_back("model=not stated (offers are ranked by the price of a GPU hour)");
}

std::string currency_of(const job::Job& job, const Limits& limits, const Options& options,
                        std::vector<std::string>& assumed) {
  if (!limits.currency.empty()) return limits.currency;
  if (limits.max_cost) return limits.max_cost->currency;
  if (job.max_cost) return job.max_cost->currency;
  assumed.push_back("currency=" + options.default_currency + " (not stated)");
  return options.default_currency;
}

double converted(const job::Money& money, const std::string& currency, const pricing::Rates& rates) {
  const auto rate = rates.rate(money.currency, currency);
  if (!rate)
    throw Error("currency_rate_missing", "/max_cost/currency",
                "no exchange rate from " + money.currency + " to " + currency + " in the rates of " + rates.date(),
                "state the limit in " + currency);
  return money.amount * *rate;
}

std::shared_ptr<const model::Model> model_of(const job::Job& job, const Options& options) {
  search::ModelCache own;
  try {
    return (options.models ? *options.models : own).load(job.model_path(), options.as_family);
  } catch (const Error& e) {  // told as an error of the key that names it
    std::string message = e.where.empty() ? e.message : e.where + ": " + e.message;
    if (!e.file.empty()) message = e.file + ": " + message;
    throw Error(e.code, options.job_where + "/model", message, e.remedy);
  }
}

void check_runtime(const job::Job& job, const model::Model& model) {
  if (job.framework.name != "shardfit") return;
  job::Plan plainest;
  plainest.gpu = "cpu";
  schedule::check_supported(job, plainest, &model);  // what no plan can mend is an error of the job
}

const regions::Catalogue& shipped_catalogue() {
  static const regions::Catalogue catalogue = regions::Catalogue::shipped();
  return catalogue;
}

const pricing::Rates& shipped_rates() {
  static const pricing::Rates rates = pricing::Rates::shipped();
  return rates;
}

}  // namespace

Limits parse_limits(const nlohmann::json& object, const std::string& where) {
  ObjectReader r(object, where);
  Limits l;
  l.pins = r.strings("pins").value_or(std::vector<std::string>{});
  if (const Json* v = r.get("deadline")) l.deadline_seconds = job::parse_deadline(*v, r.at("deadline"));
  if (const Json* v = r.get("max_cost")) l.max_cost = job::parse_money(*v, r.at("max_cost"));
  if (const auto c = r.string("currency")) l.currency = job::parse_currency(*c, r.at("currency"));
  r.finish();
  return l;
}

Decision decide(const job::Job& stated, const std::vector<pricing::Offer>& offers, const Limits& limits,
                std::int64_t now, const Options& options) {
  const auto& catalogue = options.catalogue ? *options.catalogue : shipped_catalogue();
  const auto& rates = options.rates ? *options.rates : shipped_rates();
  if (offers.empty())
    throw Error("no_offers", "/offers", "there is no offer to choose from",
                "give offers with --offers FILE, or run where the Slurm cluster is reachable");

  Decision d;
  job::Job job = stated;  // with what the model settles filled in
  Setup setup{.job = job, .options = options};
  setup.currency = d.currency = currency_of(job, limits, options, d.assumed);
  setup.pins = regions::parse_pins(job.pins, options.job_where + "/pins");
  for (const auto& atom : regions::parse_pins(limits.pins, "/limits/pins"))
    if (std::none_of(setup.pins.begin(), setup.pins.end(), [&](const regions::Atom& a) { return a.text == atom.text; }))
      setup.pins.push_back(atom);
  for (const auto& atom : setup.pins) d.pins.push_back(atom.text);
  if (!setup.pins.empty())
    for (const char* what : {"data", "checkpoints", "registry"})
      if (!job.locations.contains(what))
        d.assumed.push_back(fmt::format("locations.{}=the offer's region (not stated)", what));

  search::Limits bounds;
  bounds.max_nodes = options.max_nodes;
  bounds.allow_unsure = options.allow_unsure;
  for (const auto& deadline : {job.deadline_seconds, limits.deadline_seconds})
    if (deadline) bounds.deadline_seconds = std::min(bounds.deadline_seconds, *deadline);
  for (const auto& most : {job.max_cost, limits.max_cost})
    if (most) bounds.max_cost = std::min(bounds.max_cost, converted(*most, setup.currency, rates));

  setup.standings = standings(job, offers, setup.pins, setup.currency, now, catalogue, rates, options);
  setup.result_of.resize(offers.size(), nullptr);
  search::Outcome outcome;
  if (job.model.empty()) {
    rank_by_price(setup, d);
  } else {
    job::require_estimable(job, options.job_where);
    const auto model = model_of(job, options);
    if (auto line = search::settle_targets(job, *model, options.job_where)) d.assumed.push_back(std::move(*line));
    check_runtime(job, *model);
    const auto duration = search::duration_of(job);
    for (const auto& line : duration.assumed) d.assumed.push_back(line);
    for (size_t i = 0; i < setup.standings.size(); ++i) {
      const auto& s = setup.standings[i];
      if (s.can_be_priced())
        setup.choices.push_back({.index = i,
                                 .offer = s.offer,
                                 .device = s.device,
                                 .pricer = s.pricer.get(),
                                 .outside = !s.may_be_chosen()});
    }
    const bool searched =
        std::any_of(setup.choices.begin(), setup.choices.end(), [](const Choice& c) { return c.offer->plans.empty(); });
    if (searched && job.global_batch_sequences == 0 && !job.global_batch_tokens)
      throw Error("missing_key", options.job_where + "/global_batch_sequences",
                  "is missing, and plans are searched for it",
                  "add \"global_batch_sequences\" (or \"global_batch_tokens\")");
    outcome = search::search(job, *model, duration, setup.choices, bounds, options.calibration);
    d.cells = static_cast<std::int64_t>(outcome.cells);
    for (size_t i = 0; i < setup.choices.size(); ++i) setup.result_of[setup.choices[i].index] = &outcome.offers[i];
    rank(setup, *model, duration, outcome, bounds, d);
  }

  RejectionContext context{bounds, setup.currency, {}};
  if (d.chosen && d.chosen->cost.amount) context.chosen_cost = d.chosen->cost.amount->amount();
  for (size_t i = 0; i < setup.standings.size(); ++i) {
    const auto& s = setup.standings[i];
    if (!s.may_be_chosen()) d.rejected.push_back(rejected_by_rule(s, setup.result_of[i], context));
    else if (setup.result_of[i] && !setup.result_of[i]->best)
      d.rejected.push_back(rejected_by_search(s, *setup.result_of[i], context));
  }
  return d;
}

}  // namespace shardfit::decide
