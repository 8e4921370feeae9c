#include "selector/memory/timeline.hpp"

#include <algorithm>

namespace shardfit::memory {

void Timeline::note_peak() {
  const std::int64_t now = allocated();
  auto& of_phase = phase_peak_[static_cast<std::size_t>(phase_)];
  of_phase = std::max(of_phase, now);
  if (now > peak_) {
    peak_ = now;
    peak_phase_ = phase_;
    peak_terms_ = live_;
  }
  if (trace_ && now > segment_peak_) {
    segment_peak_ = now;
    segment_terms_ = live_;
  }
}

Timeline::Handle Timeline::make(std::int64_t bytes, Term term, int stream) {
  if (bytes <= 0) return kNone;
  ++events_;
  if (one_stream_) stream = private_pool_ && phase_ != Phase::kLoad && phase_ != Phase::kOptimizerStep ? kGather : kCompute;
  Handle h;
  if (unused_.empty()) {
    h = static_cast<Handle>(storages_.size());
    storages_.emplace_back();
  } else {
    h = unused_.back();
    unused_.pop_back();
  }
  auto& s = storages_[static_cast<std::size_t>(h)];
  s.recorded = false;
  s.block = allocator_.allocate(bytes, stream);
  if (allocator_.settled_all() != settled_all_) {   // at the limit the allocator has waited for the device
    settled_all_ = allocator_.settled_all();
    for (auto& queue : waiting_) queue.clear();
    held_.clear();
    held_first_ = 0;
    waiting_bytes_ = 0;
  }
  s.references = 1;
  s.term = term;
  s.stream = static_cast<std::int8_t>(stream);
  live_[static_cast<std::size_t>(term)] += allocator_.size(s.block);
  note_peak();
  return h;
}

void Timeline::drop(Handle h) {
  if (h < 0) return;
  auto& s = storages_[static_cast<std::size_t>(h)];
  if (--s.references > 0) return;
  const std::int64_t size = allocator_.size(s.block);
  live_[static_cast<std::size_t>(s.term)] -= size;
  const int stream = s.stream;
  if (s.recorded) {
    allocator_.hold(s.block);
    held_.push_back({s.block, launches_ + lead_});
    waiting_bytes_ += size;
    waiting_peak_ = std::max(waiting_peak_, waiting_bytes_);
  } else if (delay_[stream] > 0) {
    auto& queue = waiting_[stream];
    allocator_.hold(s.block);
    queue.push_back(s.block);
    waiting_bytes_ += size;
    waiting_peak_ = std::max(waiting_peak_, waiting_bytes_);
    if (static_cast<int>(queue.size()) > delay_[stream]) {
      waiting_bytes_ -= allocator_.size(queue.front());
      allocator_.settle(queue.front());
      queue.erase(queue.begin());
    }
  } else {
    allocator_.free(s.block);
  }
  unused_.push_back(h);
}

void Timeline::advance(int kernels) {
  launches_ += kernels;
  while (held_first_ < held_.size() && held_[held_first_].until <= launches_) {
    waiting_bytes_ -= allocator_.size(held_[held_first_].block);
    allocator_.settle(held_[held_first_++].block);
  }
  if (held_first_ == held_.size()) {
    held_.clear();
    held_first_ = 0;
  }
}

void Timeline::synchronize() {
  if (lead_ > 0) advance(lead_ + 1);
}

void Timeline::retag(Handle h, Term term) {
  if (h < 0) return;
  auto& s = storages_[static_cast<std::size_t>(h)];
  const std::int64_t size = allocator_.size(s.block);
  live_[static_cast<std::size_t>(s.term)] -= size;
  live_[static_cast<std::size_t>(term)] += size;
  s.term = term;
}

void Timeline::mark(const std::string& label) {
  if (!trace_) return;
  if (segment_peak_ < 0) {
    segment_peak_ = allocated();
    segment_terms_ = live_;
  }
  trace_->push_back({label, phase_, step_, segment_peak_, allocator_.reserved(), segment_terms_, {}});
  for (int i = 0; i < CachingAllocator::kStreams; ++i) trace_->back().cached[i] = allocator_.cached(i);
  segment_peak_ = -1;
}

}  // namespace shardfit::memory
