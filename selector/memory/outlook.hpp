// What is known of a plan's memory before its step is replayed. A search asks this first and replays only plans that may fit.
#pragma once
#include "selector/memory/memory.hpp"

namespace shardfit::memory {

struct Outlook {
  double least = 0;      // bytes that the device must give at the very least, what fills it beside the allocator included
  double likely = 0;     // the same without the allowance for code that needs less than is known of it (low_bound)
  double capacity = 0;   // what the device gives; 0 = unknown
  bool fits_never() const { return capacity > 0 && least > capacity; }          // estimate_memory says "no"
  bool fits_hardly() const { return capacity > 0 && likely > capacity; }        // "no" or "unsure"
};

// A lower bound of what the replay finds: parameters, optimizer states and buffers that live as long as the run, what every block's
// forward keeps, and the fullest moment of the head or of the last block. Request::host is not looked at. Throws as estimate_memory.
Outlook outlook(const Request& request);

// Whether the job fits as far as host memory and NVMe go, "yes", "no" or "unsure": no verdict of estimate_memory is better.
std::string host_verdict(const Request& request);

// What estimate_memory(request) would return, from its result for the same plan at another host or at none: the device's part is the
// same.
Result at_host(const Request& request, const Result& elsewhere);

}  // namespace shardfit::memory
