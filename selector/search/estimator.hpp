// The full estimate of one (job, plan): memory, then time, put together as docs/formats.md, "Estimate" has it.
#pragma once
#include <string>

#include "selector/estimate.hpp"

namespace shardfit::job {
struct Job;
struct Plan;
}  // namespace shardfit::job
namespace shardfit::model {
struct Model;
}
namespace shardfit::hardware {
struct Device;
}
namespace shardfit::pricing {
struct Host;
struct Interconnect;
}  // namespace shardfit::pricing
namespace shardfit::memory {
struct Result;
}
namespace shardfit::timing {
struct Calibration;
struct Work;
}  // namespace shardfit::timing

namespace shardfit::search {

struct Setting {
  const job::Job& job;
  const job::Plan& plan;
  const model::Model& model;
  const hardware::Device& device;
  const pricing::Host* host = nullptr;
  const pricing::Interconnect* interconnect = nullptr;
  const timing::Calibration* calibration = nullptr;
  const timing::Work* work = nullptr;      // from timing::prepare; made anew when absent
  const memory::Result* memory = nullptr;  // of this plan on this device, at any host; replayed when absent
};

struct Estimated {
  Estimate estimate;
  std::string memory_why;     // one sentence for "no" and "unsure"
  double capacity_bytes = 0;  // of the device; 0 = unknown
};

// Throws Error for a combination that the framework refuses. A time that cannot be told (a CPU that was not calibrated)
// leaves estimate.time empty and its reason under assumed.
Estimated estimate(const Setting& setting);

}  // namespace shardfit::search
