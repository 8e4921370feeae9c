// How long one optimizer step takes: the entry point of selector/time.
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
struct Interconnect;
}

namespace shardfit::timing {

// Measured rates of a machine (selector/calibrate), by which the device "cpu" is predicted at all and a GPU more narrowly.
struct Calibration;

struct Request {
  const job::Job& job;
  const job::Plan& plan;
  const model::Model& model;
  const hardware::Device& device;
  const pricing::Host* host = nullptr;
  const pricing::Interconnect* interconnect = nullptr;
  const Calibration* calibration = nullptr;
};

struct Result {
  TimeEstimate time;
  std::string basis = "table";           // table | probed | learned
  std::vector<std::string> assumed;
};

// Throws Error{not_calibrated} for the device "cpu" without a calibration (remedy: shardfit calibrate --quick).
Result estimate_time(const Request& request);

}  // namespace shardfit::timing
