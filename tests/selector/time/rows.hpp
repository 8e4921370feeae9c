// Published measurements (tests/truth/time_visible.jsonl): job, plan, host and measured step, and what the time model
// says of each.
#pragma once
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pricing/offers.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"
#include "selector/time/time.hpp"

namespace shardfit::timing {

struct Row {
  std::string id, quality;
  bool doubtful = false;  // listed, never scored
  job::Job job;
  job::Plan plan;
  std::optional<pricing::Host> host;
  std::optional<pricing::Interconnect> interconnect;
  double measured_step = 0, measured_rate = 0;  // seconds; tokens per second and GPU
};

inline std::vector<Json> read_lines(const std::string& file) {
  std::vector<Json> lines;
  for (const std::string& line : split(read_file(file), '\n'))
    if (!trim(line).empty()) lines.push_back(parse_json(line, file));
  return lines;
}

inline Row read_row(const Json& line, const std::string& base_dir) {
  Row row;
  row.id = line.at("id").get<std::string>();
  row.quality = line.value("quality", "?");
  row.doubtful = line.contains("doubt");
  row.job = job::parse_job(line.at("job"), base_dir, "/job");
  row.plan = job::parse_plan(line.at("plan"), "/plan");
  if (line.contains("host")) row.host = pricing::parse_host(line.at("host"), "/host");
  if (line.contains("interconnect"))
    row.interconnect = pricing::parse_interconnect(line.at("interconnect"), "/interconnect");
  row.measured_step = line.at("measured").value("step_seconds", 0.0);
  row.measured_rate = line.at("measured").value("tokens_per_second_per_gpu", 0.0);
  return row;
}

inline Result answer(const Row& row, const model::Model& model) {
  return estimate_time({.job = row.job,
                        .plan = row.plan,
                        .model = model,
                        .device = hardware::find_device(row.plan.gpu, "/plan/gpu"),
                        .host = row.host ? &*row.host : nullptr,
                        .interconnect = row.interconnect ? &*row.interconnect : nullptr});
}

}  // namespace shardfit::timing
