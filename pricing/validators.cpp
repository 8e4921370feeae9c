#include "pricing/validators.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "pricing/book.hpp"
#include "pricing/instance_names.hpp"
#include "pricing/money.hpp"
#include "pricing/rates.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"
#include "regions/countries.hpp"

namespace shardfit::pricing {

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted: return "accepted";
    case Verdict::kFlagged: return "flagged";
    case Verdict::kRejected: return "rejected";
  }
  return "rejected";
}

namespace {

// Same machine type in other regions may cost up to 1.6 times as much (1.07 to 1.38 seen). A GPU costs 0.3 to 3 times
// the median of its kind; beyond that it is still believed where it is within a quarter of what a known seller asks.
constexpr double kRegionSpread = 1.6, kBandLow = 0.3, kBandHigh = 3.0, kBandMargin = 1.25;
// Above this, a GPU hour is no price: feeds write 700.0 for "not sold".
constexpr double kPlaceholderGpuHour = 100.0, kPlaceholderTimesMedian = 10.0;
constexpr double kMemoryTolerance = 0.08;  // 81920, 81559 and 80 GiB are one card

bool prices_in_euro(const std::string& provider) {
  for (const char* seller : {"scaleway", "ovh", "hetzner", "seeweb", "exoscale"})
    if (provider.compare(0, std::string_view(seller).size(), seller) == 0 &&
        provider.find("shadeform") == std::string::npos)
      return true;
  return false;
}

// Rows of one machine type: by its name, or where the feed gives none by GPU and count.
std::string machine_of(const FeedRow& f) {
  const auto& r = f.row;
  const std::string count = r.gpu_count ? fmt::format("{:g}", *r.gpu_count) : "?";
  return r.provider + "|" + (r.instance.empty() ? r.gpu : r.instance) + "|" + count;
}

// "Standard_NV6ads_A10_v5" -> "standard_nv#ads_a#_v#": machines of one series.
std::string series_of(const FeedRow& f) {
  std::string out;
  for (const char c : to_lower(f.row.instance)) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !out.empty() && out.back() == '#') continue;
    out += digit ? '#' : c;
  }
  return f.row.provider + "|" + out + "|" + f.row.gpu;
}

class Judge {
 public:
  Judge(FeedRow& f, std::vector<const FeedRow*> same_machine, std::vector<const FeedRow*> same_series, bool repeated,
        const JudgeOptions& o)
      : f_(f),
        r_(f.row),
        same_machine_(std::move(same_machine)),
        same_series_(std::move(same_series)),
        repeated_(repeated),
        o_(o) {}

  void run() {
    if (o_.types) candidates_ = o_.types->candidates(r_.gpu);
    seller_ = regions::provider_slug(r_.provider);
    readable();
    gpu();
    count_and_memory();
    currency();
    place();
    prices();
    host();
    capacity();
    zeros();
    if (repeated_) flag("duplicate", "the same row stands in the file more than once");
    if (o_.check_age) age();
    forget();
  }

 private:
  void reject(const char* rule, const std::string& why) { say(rule, why, Verdict::kRejected); }
  void flag(const char* rule, const std::string& why) { say(rule, why, Verdict::kFlagged); }
  void say(const char* rule, const std::string& why, Verdict v) {
    r_.verdict = std::max(r_.verdict, v);
    if (std::find(r_.rules.begin(), r_.rules.end(), rule) == r_.rules.end()) r_.rules.push_back(rule);
    r_.why += (r_.why.empty() ? "" : "; ") + why;
  }

  double gpus() const { return r_.gpu_count.value_or(1); }

  void readable() {
    for (const auto& u : f_.unreadable) reject("placeholder_price", u);
  }

  void gpu() {
    if (is_gpu_slice(r_.instance)) return reject("gpu_fraction", r_.instance + " has a part of a GPU");
    if (r_.gpu.empty())
      return reject("gpu_unknown", names_a_gpu(r_.instance) ? r_.instance + " is a GPU machine without a GPU label"
                                                            : "the row names no GPU");
    if (o_.types && candidates_.empty())
      return reject("gpu_unknown", "\"" + r_.gpu + "\" is not in the hardware table");
    if (!r_.gpu_count) return reject("gpu_unknown", "the number of GPUs is not stated");
    if (std::floor(*r_.gpu_count) != *r_.gpu_count)
      return reject("gpu_fraction", fmt::format("{:g} GPUs is not a whole number", *r_.gpu_count));
    // Price and CPUs in proportion to a sister machine with as many GPUs: the GPU is shared out with them. A machine
    // that has the whole GPU pays for it whatever its CPUs, so its price falls more slowly than they do.
    for (const auto* p : same_series_) {
      const auto& q = p->row;
      if (q.gpu_count != r_.gpu_count || !q.vcpus || !r_.vcpus || !q.on_demand_per_hour || !r_.on_demand_per_hour)
        continue;
      const double cpu = *r_.vcpus / *q.vcpus, price = *r_.on_demand_per_hour / *q.on_demand_per_hour;
      if (cpu <= 0.55 && price <= 0.55 && price / cpu < 1.4)
        return reject("gpu_fraction", fmt::format("{} costs {:.2f} of {} with {:.2f} of its CPUs: a part of a GPU",
                                                  r_.instance, price, q.instance, cpu));
    }
  }

  bool fits_memory(double mib) const {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const GpuType* t) {
      return !t->memory_mib || std::fabs(mib / *t->memory_mib - 1) <= kMemoryTolerance;
    });
  }

  void count_and_memory() {
    if (const auto named = gpus_by_name(seller_, r_.instance);
        named && *named >= 1 && r_.gpu_count && *named != *r_.gpu_count)
      reject("count_memory", fmt::format("{} GPUs listed where {} has {:g}", *r_.gpu_count, r_.instance, *named));
    else if (r_.gpu_count && *r_.gpu_count > 8 && *r_.gpu_count != 16 && *r_.gpu_count != 10 && !consumer())
      reject("count_memory", fmt::format("no machine has {:g} of {}", *r_.gpu_count, r_.gpu));
    if (candidates_.empty()) return;
    std::optional<double> one;
    if (f_.one_memory_mib && !fits_memory(*f_.one_memory_mib)) {
      // A feed that states the node's total under the GPU's name would fit when divided by the count.
      reject("count_memory", fmt::format("{:.0f} MiB is not the memory of {}", *f_.one_memory_mib, r_.gpu));
    } else if (f_.one_memory_mib) {
      one = f_.one_memory_mib;
    }
    if (one && f_.total_memory_mib && r_.gpu_count &&
        std::fabs(*f_.total_memory_mib / (*one * *r_.gpu_count) - 1) > kMemoryTolerance)
      flag("count_memory", fmt::format("total GPU memory of {:.0f} MiB is not {:g} x {:.0f} MiB", *f_.total_memory_mib,
                                       *r_.gpu_count, *one));
    if (!one && !f_.one_memory_mib && f_.total_memory_mib && r_.gpu_count &&
        !fits_memory(*f_.total_memory_mib / *r_.gpu_count))
      flag("count_memory", fmt::format("total GPU memory of {:.0f} MiB does not fit {:g} of {}", *f_.total_memory_mib,
                                       *r_.gpu_count, r_.gpu));
  }

  // Cards of gaming and workstation boxes come in any number.
  bool consumer() const {
    return std::all_of(candidates_.begin(), candidates_.end(), [](const GpuType* t) {
      return t->key.compare(0, 3, "rtx") == 0 || t->key.compare(0, 5, "titan") == 0 ||
             t->key.compare(0, 6, "quadro") == 0;
    });
  }

  void currency() {
    if (!f_.currency_column && prices_in_euro(seller_))
      reject("currency_missing", r_.provider + " prices in EUR and the feed has no currency column");
    else if (r_.currency.empty()) reject("currency_missing", "no currency is stated");
    else if (!is_currency_code(r_.currency)) reject("currency_missing", "\"" + r_.currency + "\" is not a currency");
  }

  void place() {
    if (r_.region.empty()) reject("country_unresolvable", "the region is blank");
    else if (r_.country.empty() || !regions::is_country(r_.country))
      reject("country_unresolvable", "\"" + r_.region + "\" names no country");
  }

  void prices() {
    const auto &on_demand = r_.on_demand_per_hour, &spot = r_.spot_per_hour;
    if (!on_demand && !spot && f_.zeros.empty()) reject("placeholder_price", "the row has no price");
    for (const auto& price : {on_demand, spot}) {
      if (!price) continue;
      const double each = *price / gpus();
      const double median = usual().median;
      if (*price < 0) reject("placeholder_price", fmt::format("a price of {:g}", *price));
      else if (each >= kPlaceholderGpuHour || (median > 0 && each > kPlaceholderTimesMedian * median))
        reject("placeholder_price", fmt::format("{:g} an hour for one {} stands for \"not sold\"", each, r_.gpu));
    }
    if (on_demand && spot) {
      if (*spot > *on_demand)
        reject("spot_below_on_demand",
               fmt::format("spot {:g} is above on-demand {:g}: the on-demand figure is not one", *spot, *on_demand));
      else if (*spot == *on_demand) {
        flag("spot_below_on_demand", fmt::format("spot equals on-demand ({:g}): spot is taken as unknown", *spot));
        forget_spot_ = true;
      }
    }
    if (!on_demand || r_.verdict == Verdict::kRejected) return;
    std::vector<double> others;
    for (const auto* p : same_machine_)
      if (p->row.on_demand_per_hour && p->row.region != r_.region && p->row.currency == r_.currency)
        others.push_back(*p->row.on_demand_per_hour);
    if (!others.empty()) {
      std::nth_element(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2), others.end());
      const double ratio = *on_demand / others[others.size() / 2];
      if (ratio > kRegionSpread || ratio < 1 / kRegionSpread)
        flag("region_spread", fmt::format("{:g} an hour is {:.2f} of the same machine in other regions ({:g})",
                                          *on_demand, ratio, others[others.size() / 2]));
    }
    if (const UsualPrice u = usual(); u.median > 0) {
      const double each = *on_demand / gpus(), ratio = each / u.median;
      if ((ratio < kBandLow && each < u.low / kBandMargin) || (ratio > kBandHigh && each > u.high * kBandMargin))
        flag("region_spread",
             fmt::format("{:g} a GPU hour is {:.2f} of the median of {} ({:.2f} USD)", each, ratio, r_.gpu, u.median));
    }
  }

  // Of the types the label may mean, the one whose median is nearest to this row's price: an ambiguous label gets the
  // benefit of the doubt.
  UsualPrice usual() const {
    UsualPrice best;
    if (!o_.types) return best;
    const double each = r_.on_demand_per_hour.value_or(r_.spot_per_hour.value_or(0)) / gpus();
    if (each <= 0) return best;
    for (const auto* t : candidates_) {
      const UsualPrice u = usual_price_per_gpu(*o_.types, t->key);
      if (u.median > 0 &&
          (best.median == 0 || std::fabs(std::log(each / u.median)) < std::fabs(std::log(each / best.median))))
        best = u;
    }
    return best;
  }

  void host() {
    const std::string name = to_lower(r_.instance);
    if (name.find("part only") != std::string::npos || (seller_ == "gcp" && !r_.vcpus && !r_.ram_gib)) {
      flag("host_part_missing", "the price is of the GPUs alone; the host is sold as rows of its own");
      forget_host_ = true;
    }
    // Vast prints 32 CPUs and 64 GiB for every host: a floor of the query, not the machine.
    if (seller_ == "vast" && r_.vcpus == 32.0 && r_.ram_gib == 64.0) {
      flag("host_part_missing", "the feed prints 32 vCPUs and 64 GiB for every host");
      forget_host_ = true;
    }
  }

  void capacity() {
    if (seller_ == "oci")
      return flag("capacity_unknown", "the feed lists every machine in every region, whether it is there or not");
    if (seller_ != "lambda") return;
    for (const auto* p : same_machine_)
      if (p->row.region != r_.region && p->row.on_demand_per_hour == r_.on_demand_per_hour)
        return flag("capacity_unknown", "the feed repeats one price for every region, with capacity or without");
  }

  void zeros() {
    for (const auto& z : f_.zeros) flag("zero_is_unknown", z + " is 0, which stands for unknown");
  }

  void age() {
    if (r_.as_of.empty()) return;
    const auto seen = parse_time(r_.as_of);
    if (!seen) return flag("stale", "date \"" + r_.as_of + "\" cannot be read, so the age is unknown");
    const double seconds = static_cast<double>(f_.now.value_or(o_.now) - *seen);
    const double days = seconds / 86400.0;
    if (r_.spot_per_hour && seconds > o_.max_age.spot_seconds) {
      flag("stale",
           fmt::format("spot is {:.1f} days old (limit {:.1f}): unknown", days, o_.max_age.spot_seconds / 86400.0));
      forget_spot_ = true;
    }
    if (r_.on_demand_per_hour && seconds > o_.max_age.on_demand_seconds)
      flag("stale",
           fmt::format("on-demand is {:.0f} days old (limit {:.0f})", days, o_.max_age.on_demand_seconds / 86400.0));
  }

  void forget() {
    if (forget_spot_) r_.spot_per_hour.reset();
    if (forget_host_) r_.vcpus.reset(), r_.ram_gib.reset();
  }

  FeedRow& f_;
  PriceRow& r_;
  std::vector<const FeedRow*> same_machine_, same_series_;
  bool repeated_, forget_spot_ = false, forget_host_ = false;
  const JudgeOptions& o_;
  std::vector<const GpuType*> candidates_;
  std::string seller_;  // the provider's short name
};

std::map<std::string, UsualPrice> usual_prices(const GpuTypes& types) {
  std::map<std::string, std::vector<double>> prices;
  const Rates rates = Rates::shipped();
  for (const auto& r : snapshot_rows()) {
    const auto usd = rates.rate(r.currency, "USD");
    if (!r.on_demand_per_hour || !r.gpu_count || r.quality == "C" || !usd || is_gpu_slice(r.instance)) continue;
    for (const auto* t : types.candidates(r.gpu, r.gpu_memory_gb))
      prices[t->key].push_back(*r.on_demand_per_hour / *r.gpu_count * *usd);
  }
  std::map<std::string, UsualPrice> out;
  for (auto& [key, list] : prices) {
    std::sort(list.begin(), list.end());
    out[key] = {list[list.size() / 2], list.front(), list.back()};
  }
  return out;
}

}  // namespace

UsualPrice usual_price_per_gpu(const GpuTypes& types, const std::string& key) {
  // Computed once a table; a process has one.
  static std::mutex mutex;
  static std::map<size_t, std::map<std::string, UsualPrice>> known;
  const std::lock_guard lock(mutex);
  size_t print = types.all().size();
  for (const auto& t : types.all()) print = print * 1000003 + std::hash<std::string>()(t.key);
  auto it = known.find(print);
  if (it == known.end()) it = known.emplace(print, usual_prices(types)).first;
  const auto m = it->second.find(key);
  return m == it->second.end() ? UsualPrice{} : m->second;
}

void judge(std::vector<FeedRow>& rows, const JudgeOptions& options) {
  std::unordered_map<std::string, std::vector<const FeedRow*>> machines, series;
  std::set<std::string_view> seen;
  std::vector<FeedRow> before;  // judging clears fields; peers are compared as they came
  before.reserve(rows.size());
  for (const auto& f : rows) before.push_back(f);
  for (const auto& f : before)
    if (!f.has_peers) machines[f.feed + machine_of(f)].push_back(&f), series[f.feed + series_of(f)].push_back(&f);
  for (size_t i = 0; i < rows.size(); ++i) {
    FeedRow& f = rows[i];
    std::vector<const FeedRow*> same_machine, same_series;
    bool repeated = false;
    if (f.has_peers) {
      for (const auto& p : before[i].peers) {
        if (machine_of(p) == machine_of(f)) same_machine.push_back(&p);
        if (series_of(p) == series_of(f)) same_series.push_back(&p);
        repeated |= p.raw == f.raw;
      }
    } else {
      for (const auto* p : machines[f.feed + machine_of(f)])
        if (p != &before[i]) same_machine.push_back(p);
      for (const auto* p : series[f.feed + series_of(f)])
        if (p != &before[i]) same_series.push_back(p);
      repeated = !seen.insert(before[i].raw).second;  // the first of its kind is good
    }
    Judge(f, std::move(same_machine), std::move(same_series), repeated, options).run();
  }
}

}  // namespace shardfit::pricing
