#include "selector/memory/zero_trace.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace shardfit::memory {

std::int32_t ZeroTrace::add(const Ids& called, const Ids& returned, Entry entry) {
  entries_.push_back(entry);
  if (entry != Entry::kReturnOnly) called_.insert(called_.end(), called.begin(), called.end());
  if (entry != Entry::kCallOnly) returned_.insert(returned_.end(), returned.begin(), returned.end());
  called_begin_.push_back(static_cast<std::int32_t>(called_.size()));
  returned_begin_.push_back(static_cast<std::int32_t>(returned_.size()));
  return size() - 1;
}

// fetch_sub_module without a complete trace gathers on demand; release_sub_module then lets go of everything, what persists too.
ZeroTrace::Plan ZeroTrace::first_step() const {
  Plan plan;
  std::vector<char> available(parameters.size(), 0);
  for (std::int32_t e = 0; e < size(); ++e) {
    plan.own_begin.push_back(static_cast<std::int32_t>(plan.own_ids.size()));
    plan.released_begin.push_back(static_cast<std::int32_t>(plan.released_ids.size()));
    for (const auto p : needs(e))
      if (!std::exchange(available[static_cast<std::size_t>(p)], 1)) plan.own_ids.push_back(p);
    for (const auto p : returned(e))
      if (std::exchange(available[static_cast<std::size_t>(p)], 0)) plan.released_ids.push_back(p);
  }
  plan.own_begin.push_back(static_cast<std::int32_t>(plan.own_ids.size()));
  plan.released_begin.push_back(static_cast<std::int32_t>(plan.released_ids.size()));
  plan.ahead_begin.assign(called_begin_.size(), 0);
  return plan;
}

ZeroTrace::Plan ZeroTrace::recorded(const TraceLimits& limits, bool with_live, const std::vector<char>& start, double live) const {
  Plan plan;
  const std::int32_t n = size();
  plan.own_begin.reserve(called_begin_.size());
  plan.ahead_begin.reserve(called_begin_.size());
  plan.released_begin.reserve(called_begin_.size());

  // Elements that the calls before each entry use; the next call that uses what a return could let go of; the next call at all.
  std::vector<std::int64_t> passed(static_cast<std::size_t>(n) + 1, 0);
  for (std::int32_t e = 0; e < n; ++e) {
    std::int64_t sum = passed[static_cast<std::size_t>(e)];
    for (const auto p : needs(e)) sum += parameters[static_cast<std::size_t>(p)].elements;
    passed[static_cast<std::size_t>(e) + 1] = sum;
  }
  Ids next_use(returned_.size(), -1), upcoming(parameters.size(), -1), entry_of(called_.size(), 0), next_call(static_cast<std::size_t>(n) + 1, n);
  for (std::int32_t e = n; e-- > 0;) {
    const auto at = static_cast<std::size_t>(e);
    for (auto i = returned_begin_[at]; i < returned_begin_[at + 1]; ++i)
      next_use[static_cast<std::size_t>(i)] = upcoming[static_cast<std::size_t>(returned_[static_cast<std::size_t>(i)])];
    for (auto i = called_begin_[at]; i < called_begin_[at + 1]; ++i) {
      entry_of[static_cast<std::size_t>(i)] = e;
      upcoming[static_cast<std::size_t>(called_[static_cast<std::size_t>(i)])] = e;
    }
    next_call[at] = is_call(e) ? e : next_call[at + 1];
  }

  std::vector<char> available(parameters.size(), 0);
  Ids fetched_for(parameters.size(), std::numeric_limits<std::int32_t>::min());
  std::size_t queue = 0;               // next use in the trace that has not been taken
  double buffers = 0;                  // swap buffers in use
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    available[p] = start.empty() ? parameters[p].persists : start[p];
    if (available[p] && !parameters[p].persists && parameters[p].swapped) buffers += 1;
  }
  for (std::int32_t e = 0; e < n; ++e) {
    plan.own_begin.push_back(static_cast<std::int32_t>(plan.own_ids.size()));
    plan.ahead_begin.push_back(static_cast<std::int32_t>(plan.ahead_ids.size()));
    plan.released_begin.push_back(static_cast<std::int32_t>(plan.released_ids.size()));
    if (is_call(e)) {
      std::size_t unseen = 0;
      for (const auto p : needs(e)) {
        const auto at = static_cast<std::size_t>(p);
        if (!available[at]) {
          available[at] = 1;
          live += static_cast<double>(parameters[at].elements);
          buffers += parameters[at].swapped ? 1 : 0;
          plan.own_ids.push_back(p);
        }
        if (fetched_for[at] < e) ++unseen;
      }
      // what the call needs leaves the queue, where earlier calls have not taken it already
      for (; unseen > 0 && queue < called_.size(); --unseen, ++queue) fetched_for[static_cast<std::size_t>(called_[queue])] = entry_of[queue];
      const double room = std::min(limits.max_live - live, limits.prefetch);
      double taken = 0;
      while (queue < called_.size() && taken < room) {
        const auto at = static_cast<std::size_t>(called_[queue]);
        // what is still on the drive is not fetched ahead, to keep the order of fetches
        if (parameters[at].swapped && !available[at] && buffers >= limits.swap_buffers) break;
        fetched_for[at] = std::max(fetched_for[at], entry_of[queue]);
        if (!available[at]) {
          available[at] = 1;
          taken += static_cast<double>(parameters[at].elements);
          buffers += parameters[at].swapped ? 1 : 0;
          plan.ahead_ids.push_back(static_cast<std::int32_t>(at));
        }
        ++queue;
      }
      live += taken;
      if (with_live) plan.live.push_back(live);
    }
    // on return: neither what persists, nor what the queue has passed by because it was there, nor what is used again soon
    const auto at_entry = static_cast<std::size_t>(e);
    for (auto i = returned_begin_[at_entry]; i < returned_begin_[at_entry + 1]; ++i) {
      const auto p = returned_[static_cast<std::size_t>(i)];
      const auto at = static_cast<std::size_t>(p);
      if (!available[at] || parameters[at].persists || fetched_for[at] > next_call[at_entry + 1]) continue;
      const auto next = next_use[static_cast<std::size_t>(i)];
      if (next >= 0 && static_cast<double>(passed[static_cast<std::size_t>(next)] - passed[at_entry + 1]) < limits.max_reuse) continue;
      available[at] = 0;
      live -= static_cast<double>(parameters[at].elements);
      buffers -= parameters[at].swapped ? 1 : 0;
      plan.released_ids.push_back(p);
    }
  }
  plan.own_begin.push_back(static_cast<std::int32_t>(plan.own_ids.size()));
  plan.ahead_begin.push_back(static_cast<std::int32_t>(plan.ahead_ids.size()));
  plan.released_begin.push_back(static_cast<std::int32_t>(plan.released_ids.size()));
  for (std::size_t p = 0; p < parameters.size(); ++p) plan.left += available[p] ? static_cast<double>(parameters[p].elements) : 0;
  return plan;
}

}  // namespace shardfit::memory
