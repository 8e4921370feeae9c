// shardfit plan: where the job should run, and how.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "pricing/site.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/pins.hpp"
#include "selector/cli/cluster_offers.hpp"
#include "selector/cli/job_setting.hpp"
#include "selector/cli/parse.hpp"
#include "selector/cli/records.hpp"
#include "selector/decide/decide.hpp"
#include "selector/decide/table.hpp"
#include "selector/job/money.hpp"
#include "selector/search/model_cache.hpp"

namespace shardfit::cli {

namespace {

struct PlanArguments {
  std::string job_file, in_file, offers_file, deadline, max_cost, currency, now, family;
  std::vector<std::string> pins, gpus;
  double tie = 5;
  int top = 10;
  std::int64_t max_nodes = 0;
  bool allow_unsure = false, json = false;
};

decide::Limits limits_of(const PlanArguments& a) {
  decide::Limits l;
  l.pins = a.pins;
  if (!a.deadline.empty()) l.deadline_seconds = job::parse_deadline(Json(a.deadline), "--deadline");
  if (!a.max_cost.empty()) l.max_cost = job::parse_money(std::string_view(a.max_cost), "--max-cost");
  if (!a.currency.empty()) l.currency = job::parse_currency(a.currency, "--currency");
  return l;
}

std::int64_t time_of(const std::string& text, const std::string& where) {
  const auto t = parse_time(text);
  if (!t)
    throw Error("bad_time", where, "\"" + text.substr(0, 60) + "\" is not a point in time",
                "write RFC 3339, e.g. 2026-08-22T00:00:00Z");
  return *t;
}

// Both sets of limits hold: pins add up, of two deadlines or costs the stricter counts.
decide::Limits joined(decide::Limits line, const decide::Limits& command, const pricing::Rates& rates) {
  line.pins.insert(line.pins.end(), command.pins.begin(), command.pins.end());
  if (command.deadline_seconds)
    line.deadline_seconds =
        std::min(line.deadline_seconds.value_or(*command.deadline_seconds), *command.deadline_seconds);
  if (command.max_cost && line.max_cost) {
    const auto rate = rates.rate(command.max_cost->currency, line.max_cost->currency);
    if (!rate)
      throw Error("currency_rate_missing", "--max-cost",
                  "no exchange rate from " + command.max_cost->currency + " to " + line.max_cost->currency +
                      ", in which the line states its own max_cost",
                  "state both in one currency");
    if (command.max_cost->amount * *rate < line.max_cost->amount) line.max_cost = command.max_cost;
  } else if (command.max_cost) {
    line.max_cost = command.max_cost;
  }
  if (!command.currency.empty()) line.currency = command.currency;
  return line;
}

std::vector<pricing::Offer> parse_offer_list(const Json& list, const std::string& where) {
  if (!list.is_array()) throw Error("wrong_type", where, "a list of offers is needed, not " + brief(list));
  std::vector<pricing::Offer> offers;
  for (size_t i = 0; i < list.size(); ++i)
    offers.push_back(pricing::parse_offer(list[i], where + "/" + std::to_string(i)));
  return offers;
}

}  // namespace

int plan_command(const Arguments& arguments) {
  CLI::App app{"Decide where a job should run and how it should be sharded", "plan"};
  PlanArguments a;
  app.add_option("JOB", a.job_file, "Job file (JSON)");
  app.add_option("--in", a.in_file,
                 "JSON lines of {\"id\", \"job\", \"offers\", \"limits\", \"now\"}; - = standard input");
  app.add_option("--offers", a.offers_file, "Offers (JSON); without it, what the Slurm cluster offers now");
  app.add_option("--pin", a.pins, "Pin that every choice must satisfy, e.g. 'residency(EU|CH)'; may be repeated")
      ->take_all()
      ->expected(1);
  app.add_option("--deadline", a.deadline, "Latest end from now, e.g. 12h");
  app.add_option("--max-cost", a.max_cost, "Most the run may cost, e.g. 500EUR");
  app.add_option("--currency", a.currency, "Currency of the answer (default: that of --max-cost, else the site's)");
  app.add_option("--now", a.now, "Point in time by which prices age (RFC 3339; default: now)");
  app.add_option("--top", a.top, "Candidates to show (default 10)")->check(CLI::Range(1, 1000));
  app.add_option("--tie", a.tie, "Per cent by which costs must differ not to be a tie (default 5)")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--gpu", a.gpus, "Only these GPUs; may be repeated or joined by commas")->delimiter(',');
  app.add_option("--max-nodes", a.max_nodes, "At most so many nodes")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  app.add_option("--as", a.family, "Read the model as this family, whatever its config.json says");
  app.add_flag("--allow-unsure", a.allow_unsure, "Also choose plans whose memory verdict is \"unsure\"");
  app.add_flag("--json", a.json, "Print the decision as JSON");
  if (const auto status = parse(app, arguments)) return *status;
  if (a.in_file.empty() == a.job_file.empty())
    throw Error("usage", "plan",
                a.in_file.empty() ? "a job file or --in is missing" : "a job file and --in exclude each other",
                "see shardfit plan --help");
  if (!a.in_file.empty() && !a.offers_file.empty())
    throw Error("usage", "plan", "--offers is for a single job", "put \"offers\" into each line");

  const auto site = pricing::read_site();
  const auto catalogue = regions::Catalogue::load(site.regions_dir);
  const auto rates = pricing::Rates::load(site.state_dir);
  search::ModelCache models;
  decide::Options options{.catalogue = &catalogue,
                          .rates = &rates,
                          .price_max_age = site.price_max_age,
                          .models = &models,
                          .default_currency = site.currency};
  options.as_family = a.family;
  options.tie_percent = a.tie;
  options.top = a.top;
  options.allow_unsure = a.allow_unsure;
  options.gpus = a.gpus;
  if (a.max_nodes > 0) options.max_nodes = a.max_nodes;
  const auto limits = limits_of(a);
  const std::int64_t now = a.now.empty() ? now_seconds() : time_of(a.now, "--now");
  const auto needs_calibration = [](const std::vector<pricing::Offer>& offers) {
    return std::any_of(offers.begin(), offers.end(), [](const pricing::Offer& o) { return to_lower(o.gpu) == "cpu"; });
  };

  if (!a.in_file.empty()) {
    options.job_where = "/job";
    return answer_lines(a.in_file, [&](const Json& line, const std::string& base_dir) {
      ObjectReader r(line, "");
      const auto job = job::parse_job(r.required("job"), base_dir, "/job");
      const auto offers = parse_offer_list(r.required("offers"), "/offers");
      decide::Limits own;
      if (const Json* v = r.get("limits")) own = decide::parse_limits(*v, "/limits");
      const auto when = r.string("now");
      auto line_options = options;
      if (needs_calibration(offers)) line_options.calibration = stored_calibration();
      return decide::to_json(
          decide::decide(job, offers, joined(own, limits, rates), when ? time_of(*when, "/now") : now, line_options));
    });
  }

  job::Job job;
  std::vector<pricing::Offer> offers;
  decide::Decision decision;
  try {
    const auto slash = a.job_file.find_last_of('/');
    job = job::parse_job(read_json_file(a.job_file), slash == std::string::npos ? "" : a.job_file.substr(0, slash + 1));
    job.file = a.job_file;
    regions::parse_pins(job.pins, "/pins");  // before the cluster is asked
  } catch (Error& e) {
    e.in_file(a.job_file);
    throw;
  }
  if (a.offers_file.empty()) offers = cluster_offers(site, catalogue, now);
  else offers = pricing::read_offers(a.offers_file);
  if (needs_calibration(offers)) options.calibration = stored_calibration();
  try {
    decision = decide::decide(job, offers, limits, now, options);
  } catch (Error& e) {
    e.in_file(e.where.rfind("/offers", 0) == 0 ? (a.offers_file.empty() ? "the cluster's offers" : a.offers_file)
                                               : a.job_file);
    throw;
  }
  const std::string text = a.json ? decide::to_json(decision).dump(2) + "\n" : decide::table(decision, job);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (decision.chosen) return kExitDone;
  std::fflush(stdout);
  std::fprintf(stderr, "shardfit: %s: %s; %s\n", a.job_file.c_str(), decide::one_line(decision).c_str(),
               decision.rejected.empty() || decision.rejected.front().nearest.empty()
                   ? "see the rejected offers"
                   : decision.rejected.front().nearest.c_str());
  return kExitNothingFits;
}

}  // namespace shardfit::cli
