// The JSON form of a ledger record.
#include <nlohmann/json.hpp>

#include "pricing/ledger.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

using Ordered = nlohmann::ordered_json;

Ordered maybe(const std::optional<double>& v) { return v ? Ordered(*v) : Ordered(); }
Ordered maybe(const std::string& v) { return v.empty() ? Ordered() : Ordered(v); }
Ordered moment(std::int64_t t) { return t > 0 ? Ordered(format_time(t)) : Ordered(); }

std::optional<double> number(const nlohmann::json& j, const char* key) {
  const auto it = j.find(key);
  return it == j.end() || !it->is_number() ? std::nullopt : std::optional(it->get<double>());
}
std::string text(const nlohmann::json& j, const char* key) {
  const auto it = j.find(key);
  return it == j.end() || !it->is_string() ? "" : it->get<std::string>();
}
std::int64_t whole(const nlohmann::json& j, const char* key) {
  return static_cast<std::int64_t>(number(j, key).value_or(0));
}
std::int64_t time_at(const nlohmann::json& j, const char* key) { return parse_time(text(j, key)).value_or(0); }
nlohmann::json object(const nlohmann::json& j, const char* key) {
  const auto it = j.find(key);
  return it == j.end() || !it->is_object() ? nlohmann::json::object() : *it;
}

}  // namespace

nlohmann::ordered_json to_json(const LedgerRecord& r) {
  Ordered j{{"cluster", r.cluster}, {"job_id", r.job_id}, {"restart", r.restart}};
  if (r.array_job_id) j["array_job_id"] = *r.array_job_id, j["array_task_id"] = r.array_task_id.value_or(0);
  if (r.het_job_id) j["het_job_id"] = *r.het_job_id;
  j["submit"] = moment(r.submit);
  j["start"] = moment(r.start);
  j["end"] = moment(r.end);
  j["state"] = r.state;
  j["user"] = r.user;
  j["account"] = maybe(r.account);
  j["name"] = maybe(r.name);
  j["partition"] = maybe(r.partition);
  j["region"] = maybe(r.region);
  j["nodes"] = r.nodes;
  j["gpu"] = maybe(r.gpu);
  j["gpus"] = r.gpus;
  j["cpus"] = r.cpus;
  j["seconds"] = r.seconds;
  j["billed_seconds"] = maybe(r.billed_seconds);
  j["price"] = nullptr;
  if (r.price)
    j["price"] = {{"amount", r.price->amount}, {"currency", r.price->currency},  {"per", r.price->per},
                  {"kind", r.price->kind},     {"as_of", maybe(r.price->as_of)}, {"source", maybe(r.price->source)}};
  auto& cost = j["cost"] = {{"amount", r.cost ? Ordered(r.cost->amount()) : Ordered()},
                            {"currency", r.currency},
                            {"parts", Ordered::object()},
                            {"rate_date", maybe(r.rate_date)}};
  for (const auto& [name, m] : r.cost_parts) cost["parts"][name] = m.amount();
  cost["basis"] = Ordered::object();
  for (const auto& [name, basis] : r.basis) cost["basis"][name] = basis;
  j["predicted"] = {{"seconds", maybe(r.predicted.seconds)},
                    {"cost", maybe(r.predicted.cost)},
                    {"memory_peak", maybe(r.predicted.memory_peak)},
                    {"step", maybe(r.predicted.step)}};
  j["measured"] = {{"memory_peak", maybe(r.measured.memory_peak)}, {"step", maybe(r.measured.step)}};
  j["runner_up"] = {{"offer", maybe(r.runner_up.offer)}, {"cost", maybe(r.runner_up.cost)}};
  j["pins"] = r.pins;
  j["plan"] = r.plan.empty() ? Ordered() : Ordered("sha256:" + r.plan);
  auto& unknown = j["unknown"] = Ordered::object();
  for (const auto& [field, why] : r.unknown) unknown[field] = why;
  return j;
}

LedgerRecord parse_ledger_record(const nlohmann::json& j) {
  LedgerRecord r;
  r.cluster = text(j, "cluster");
  r.job_id = whole(j, "job_id");
  r.restart = whole(j, "restart");
  if (j.contains("array_job_id"))
    r.array_job_id = whole(j, "array_job_id"), r.array_task_id = whole(j, "array_task_id");
  if (j.contains("het_job_id")) r.het_job_id = whole(j, "het_job_id");
  r.submit = time_at(j, "submit");
  r.start = time_at(j, "start");
  r.end = time_at(j, "end");
  r.state = text(j, "state");
  r.user = text(j, "user");
  r.account = text(j, "account");
  r.name = text(j, "name");
  r.partition = text(j, "partition");
  r.region = text(j, "region");
  r.nodes = whole(j, "nodes");
  r.gpu = text(j, "gpu");
  r.gpus = whole(j, "gpus");
  r.cpus = whole(j, "cpus");
  r.seconds = number(j, "seconds").value_or(0);
  r.billed_seconds = number(j, "billed_seconds");
  if (const auto p = object(j, "price"); !p.empty())
    r.price = Price{number(p, "amount").value_or(0),
                    text(p, "currency"),
                    text(p, "per"),
                    text(p, "kind"),
                    text(p, "as_of"),
                    text(p, "source"),
                    {}};
  const auto cost = object(j, "cost");
  r.currency = text(cost, "currency");
  if (const auto amount = number(cost, "amount"); amount && is_currency_code(r.currency))
    r.cost = Money(*amount, r.currency);
  const auto parts = object(cost, "parts");
  for (const auto& [name, value] : parts.items())
    if (value.is_number() && is_currency_code(r.currency))
      r.cost_parts.emplace_back(name, Money(value.get<double>(), r.currency));
  const auto basis = object(cost, "basis");
  for (const auto& [name, how] : basis.items())
    if (how.is_string()) r.basis.emplace_back(name, how.get<std::string>());
  r.rate_date = text(cost, "rate_date");
  const auto predicted = object(j, "predicted"), measured = object(j, "measured"), runner_up = object(j, "runner_up"),
             unknown = object(j, "unknown");
  r.predicted = {number(predicted, "seconds"), number(predicted, "cost"), number(predicted, "memory_peak"),
                 number(predicted, "step")};
  r.measured = {number(measured, "memory_peak"), number(measured, "step")};
  r.runner_up = {text(runner_up, "offer"), number(runner_up, "cost")};
  if (const auto it = j.find("pins"); it != j.end() && it->is_array())
    for (const auto& p : *it)
      if (p.is_string()) r.pins.push_back(p.get<std::string>());
  r.plan = text(j, "plan");
  if (r.plan.compare(0, 7, "sha256:") == 0) r.plan = r.plan.substr(7);
  for (const auto& [field, why] : unknown.items())
    if (why.is_string()) r.unknown.emplace_back(field, why.get<std::string>());
  return r;
}

}  // namespace shardfit::pricing
