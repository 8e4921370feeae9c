// How much memory a job needs on each GPU and each host: the entry point of selector/memory.
#pragma once
#include <string>
#include <vector>

#include "selector/estimate.hpp"

namespace shardfit::job {
struct Job;
struct Plan;
}
namespace shardfit::model {
struct Model;
}
namespace shardfit::hardware {
struct Device;
}
namespace shardfit::pricing {
struct Host;
}

namespace shardfit::memory {

struct Request {
  const job::Job& job;
  const job::Plan& plan;
  const model::Model& model;
  const hardware::Device& device;
  const pricing::Host* host = nullptr;   // nullptr = unknown; then host RAM is not judged and offload is at best "unsure"
};

struct Result {
  MemoryEstimate memory;
  std::int64_t parameters_total = 0, parameters_trainable = 0;
  std::string fits;                      // yes | no | unsure
  std::string why;                       // one sentence for "no" and "unsure": which limit, by how much
  double capacity_bytes = 0;             // what the device gives; 0 = unknown
  std::string known;                     // how much of the job's code is modelled: the class of its bounds (bounds.hpp)
  double needed_low = 0, needed_high = 0;   // 95 % bounds of what the device must give, cached segments given back: the verdict's
  std::vector<std::string> assumed;
};

// Throws Error for a combination that the framework refuses (the message names key and remedy). Pure: no files, no globals.
Result estimate_memory(const Request& request);

}  // namespace shardfit::memory
