// The settings that trade memory for something else: which values each framework has beyond those of a plan.
#pragma once
#include <string>
#include <vector>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"

namespace shardfit::model {
struct Model;
}

namespace shardfit::memory {

struct Lever {
  std::string name;                // levers of one name exclude each other
  int rank = 0;                    // what usually costs least comes first: 0 nothing, 9 more hardware
  std::string key, from, to;
  job::Job job;
  job::Plan plan;
};

// Changes of what is trained or how exactly: 8-bit optimizer states, shorter sequences, adapters instead of all weights, a quantised base.
// They cost no more than settings do, but the result is another: never advised, only told.
std::vector<Lever> hints_of(const job::Job& job, const job::Plan& plan);

// Every single change of (job, plan) that can free device memory under the job's framework, least costly first.
std::vector<Lever> levers_of(const job::Job& job, const job::Plan& plan, const model::Model& model);

}  // namespace shardfit::memory
