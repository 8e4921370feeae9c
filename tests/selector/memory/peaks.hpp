// Peaks of real training code, phase by phase, beside the replay's: the lines of goldens/*.jsonl.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/trace.hpp"
#include "selector/model/model.hpp"

namespace shardfit::memory {

struct GoldenCase {
  std::string name;
  nlohmann::json job, plan;
  std::map<std::string, double> peaks;   // forward, backward, optimizer_step: bytes that torch held at most, in a step after the first
};

inline const std::string kGoldens = std::string(SHARDFIT_SOURCE_DIR) + "/tests/selector/memory/goldens";

// `file`: of goldens/.
inline std::vector<GoldenCase> golden_cases(const std::string& file) {
  std::vector<GoldenCase> cases;
  std::ifstream in(kGoldens + "/" + file);
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    const auto j = nlohmann::json::parse(line);
    cases.push_back({j["name"], j["job"], j["plan"], j["peaks"]});
  }
  return cases;
}

// The same from the replay. The loss counts as forward, as in the measurement.
inline std::map<std::string, double> replayed_peaks(const GoldenCase& c) {
  const auto job = job::parse_job(c.job, kGoldens);
  const auto plan = job::parse_plan(c.plan);
  const auto model = model::load_model(job.model_path());
  const Trace trace = trace_memory({job, plan, model, hardware::find_device(plan.gpu, "")});
  std::map<std::string, double> peaks;
  for (const auto& p : trace.points) {
    if (p.step != 2) continue;
    auto& peak = peaks[p.phase == Phase::kLoss ? "forward" : std::string(name_of(p.phase))];
    peak = std::max(peak, static_cast<double>(p.allocated));
  }
  return peaks;
}

// Fails where a phase that comes within a tenth of the largest differs by more than `tolerance`.
inline void expect_peaks(const GoldenCase& c, double tolerance) {
  const auto replayed = replayed_peaks(c);
  double largest = 0;
  for (const char* phase : {"forward", "backward", "optimizer_step"}) largest = std::max(largest, c.peaks.at(phase));
  for (const char* phase : {"forward", "backward", "optimizer_step"}) {
    const double measured = c.peaks.at(phase);
    if (measured < 0.9 * largest || (std::string(phase) == "optimizer_step" && measured < c.peaks.at("backward") * 1.01)) continue;   // a step that allocates nothing
    const double ours = replayed.count(phase) ? replayed.at(phase) : 0;
    EXPECT_NEAR(ours / measured, 1, tolerance) << c.name << ", " << phase << ": " << ours / 1048576 << " MiB, measured " << measured / 1048576;
  }
}

}  // namespace shardfit::memory
