#include "selector/decide/flips.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "regions/base/error.hpp"
#include "selector/model/model.hpp"
#include "selector/time/time.hpp"

namespace shardfit::decide {

namespace {

using search::Choice;
using search::Found;

const Choice& choice_of(const FlipInput& in, const Found& f) { return in.choices[f.choice]; }
const std::string& id_of(const FlipInput& in, const Found& f) { return choice_of(in, f).offer->id; }

// The price at which an offer costs `target`; nullopt where no price above 0 does.
std::optional<double> price_for(const FlipInput& in, const Found& f, double target) {
  if (!choice_of(in, f).offer->price) return std::nullopt;
  const auto line = choice_of(in, f).pricer->line(f.needs);
  if (!(line.per_price_unit > 0)) return std::nullopt;
  const double price = (target - line.at_zero) / line.per_price_unit;
  return price > 0 && std::isfinite(price) ? std::optional(price) : std::nullopt;
}

// x in [low, high] (log scale) where `gain` changes sign from that at low; nullopt where it does not.
std::optional<double> crossing(double low, double high, const std::function<double(double)>& gain) {
  const double first = gain(low), last = gain(high);
  if (!std::isfinite(first) || !std::isfinite(last) || (first > 0) == (last > 0)) return std::nullopt;
  for (int i = 0; i < 50; ++i) {
    const double middle = std::sqrt(low * high);
    if ((gain(middle) > 0) == (first > 0)) low = middle;
    else high = middle;
  }
  return high;
}

void price_flips(const FlipInput& in, std::vector<Flip>& out) {
  const auto unit = [](const pricing::Price& p) { return p.currency + "/" + p.per; };
  if (const auto to = price_for(in, in.chosen, in.runner_up.cost)) {
    const auto& p = *choice_of(in, in.chosen).offer->price;
    out.push_back({"price of " + id_of(in, in.chosen), p.amount, *to, unit(p), id_of(in, in.runner_up)});
  }
  if (const auto to = price_for(in, in.runner_up, in.chosen.cost)) {
    const auto& p = *choice_of(in, in.runner_up).offer->price;
    out.push_back({"price of " + id_of(in, in.runner_up), p.amount, *to, unit(p), id_of(in, in.runner_up)});
  }
}

void step_flip(const FlipInput& in, std::vector<Flip>& out) {
  const auto& pricer = *choice_of(in, in.chosen).pricer;
  const auto gain = [&](double factor) {
    auto needs = in.chosen.needs;
    needs.seconds *= factor;
    return pricer.quick(needs).value_or(0) - in.runner_up.cost;
  };
  if (const auto factor = crossing(1.0, 20.0, gain))
    out.push_back({"step time of " + id_of(in, in.chosen), in.chosen.time.step, in.chosen.time.step * *factor, "s",
                   id_of(in, in.runner_up)});
}

// Cost of a plan with its accumulation scaled to another global batch, or on a host with another optimizer rate.
double cost_with(const FlipInput& in, const timing::Work& work, const Found& f, double batch_factor,
                 std::optional<double> optimizer_rate) {
  const auto& choice = choice_of(in, f);
  job::Plan plan = f.plan;
  plan.gradient_accumulation =
      std::max<std::int64_t>(1, std::llround(static_cast<double>(plan.gradient_accumulation) * batch_factor));
  pricing::Host host = choice.offer->host;
  if (optimizer_rate) host.optimizer_gparams_per_s = *optimizer_rate;
  const auto time = timing::step_time(work, plan, *choice.device, &host, &choice.offer->interconnect, in.calibration);
  const auto steps = in.duration.steps_for(job::global_batch(plan), in.job.sequence_length);
  return choice.pricer->quick(search::run_needs(in.job, plan, time, steps))
      .value_or(std::numeric_limits<double>::quiet_NaN());
}

void offload_flips(const FlipInput& in, std::vector<Flip>& out) {
  const auto offloads = [](const Found& f) { return f.plan.offload.optimizer != job::Place::kNone; };
  if (!offloads(in.chosen) && !offloads(in.runner_up)) return;
  const auto work = timing::prepare(in.job, in.model);
  const auto batch = static_cast<double>(job::global_batch(in.chosen.plan));
  if (in.duration.tokens > 0) {  // more tokens a step amortise an update on the CPU
    double factor = 1;
    for (int k = 1; k <= 6; ++k)
      for (const bool more : {true, false}) {
        const double f = more ? std::ldexp(1.0, k) : std::ldexp(1.0, -k);
        if (!more && static_cast<double>(
                         std::min(in.chosen.plan.gradient_accumulation, in.runner_up.plan.gradient_accumulation)) *
                             f <
                         1)
          continue;
        if (factor == 1 && cost_with(in, *work, in.chosen, f, {}) > cost_with(in, *work, in.runner_up, f, {}))
          factor = f;
      }
    if (factor != 1) out.push_back({"global batch", batch, batch * factor, "sequences", id_of(in, in.runner_up)});
  }
  const Found& slow = offloads(in.chosen) ? in.chosen : in.runner_up;
  if (!(slow.time.cpu_optimizer > 0)) return;
  const double now = choice_of(in, slow).offer->host.optimizer_gparams_per_s.value_or(
      static_cast<double>(in.model.parameters()) / 1e9 / static_cast<double>(slow.plan.nodes) /
      slow.time.cpu_optimizer);
  const auto gain = [&](double rate) {
    const double mine = offloads(in.chosen) ? cost_with(in, *work, in.chosen, 1, rate) : in.chosen.cost;
    const double other = offloads(in.runner_up) ? cost_with(in, *work, in.runner_up, 1, rate) : in.runner_up.cost;
    return mine - other;
  };
  const bool both = offloads(in.chosen) && offloads(in.runner_up);
  const auto to = both                  ? std::nullopt
                  : offloads(in.chosen) ? crossing(now, now / 50, gain)
                                        : crossing(now, now * 50, gain);
  if (to) out.push_back({"host optimizer rate of " + id_of(in, slow), now, *to, "Gparam/s", id_of(in, in.runner_up)});
}

}  // namespace

std::vector<Flip> flips_between(const FlipInput& in) {
  std::vector<Flip> out;
  price_flips(in, out);
  step_flip(in, out);
  try {
    offload_flips(in, out);
  } catch (const Error&) {
    // A setting that cannot be timed has no flip.
  }
  return out;
}

}  // namespace shardfit::decide
