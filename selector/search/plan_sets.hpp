// Plans that the offers of one machine share, and what the memory of one tells of the others.
#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"
#include "selector/memory/outlook.hpp"

namespace shardfit::search {

// A plan that several offers share, with its memory once it is known.
struct Entry {
  const job::Plan* plan = nullptr;
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
  std::vector<job::Plan> plans;
  std::vector<Entry> entries;
  std::vector<Family> families;
};

// Joins neighbours that differ in the micro batch alone.
void link_families(PlanSet& set);

LayoutKey layout_key(const job::Plan& plan, const hardware::Device& device);

double shards_of(const job::Plan& plan);

Lesson lesson_of(const PlanSet& set, const job::Job& job, const job::Plan& plan, const memory::Result& result);

}  // namespace shardfit::search
