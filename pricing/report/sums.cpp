#include <map>
#include <set>

#include "pricing/report/report.hpp"
#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

std::string key_of(const LedgerRecord& r, const std::string& by) {
  if (by == "user") return r.user;
  if (by == "account") return r.account;
  if (by == "region") return r.region;
  if (by == "gpu") return r.gpu;
  return r.end > 0 ? format_date(r.end).substr(0, 7) : "";
}

class Adder {
 public:
  Adder(Sum& sum, const Rates& rates, const std::string& currency) : sum_(sum), rates_(rates), currency_(currency) {
    sum_.cost = Money(0, currency);
    sum_.predicted_actual = Money(0, currency);
  }

  void add(const LedgerRecord& r) {
    ++sum_.attempts;
    if (jobs_.emplace(r.cluster, r.job_id).second) ++sum_.jobs;
    sum_.gpu_hours += static_cast<double>(r.gpus) * r.seconds / 3600.0;
    const auto rate = r.cost ? rates_.rate(r.cost->currency(), currency_) : std::nullopt;
    if (!rate) {
      ++sum_.left_out;
      return;
    }
    const Money cost = r.cost->currency() == currency_ ? *r.cost : Money(r.cost->amount() * *rate, currency_);
    sum_.cost += cost;
    if (!r.predicted.cost || r.seconds <= 0) return;
    if (!sum_.predicted) sum_.predicted = Money(0, currency_);
    *sum_.predicted += Money(*r.predicted.cost * *rate, currency_);
    sum_.predicted_actual += cost;
  }

 private:
  Sum& sum_;
  const Rates& rates_;
  const std::string& currency_;
  std::set<std::pair<std::string, std::int64_t>> jobs_;
};

}  // namespace

std::vector<Sum> sum_by(const std::vector<LedgerRecord>& records, const std::string& by, const Rates& rates,
                        const std::string& currency) {
  static const std::vector<std::string> words = {"user", "account", "region", "gpu", "month"};
  if (std::find(words.begin(), words.end(), by) == words.end())
    throw Error("unknown_word", "--by", "\"" + by + "\" is not known here", "known: " + join(words, ", "));
  std::map<std::string, std::pair<Sum, std::unique_ptr<Adder>>>
      groups;  // Adder holds a reference: a map's nodes stay where they are
  for (const auto& r : records) {
    auto& [sum, adder] = groups[key_of(r, by)];
    if (!adder) adder = std::make_unique<Adder>(sum, rates, currency);
    adder->add(r);
  }
  std::vector<Sum> out;
  for (auto& [key, group] : groups) {
    group.first.key = key;
    out.push_back(group.first);
  }
  return out;
}

Sum sum_all(const std::vector<LedgerRecord>& records, const Rates& rates, const std::string& currency) {
  Sum sum;
  Adder adder(sum, rates, currency);
  for (const auto& r : records) adder.add(r);
  return sum;
}

}  // namespace shardfit::pricing
