#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "regions/base/text.hpp"
#include "selector/calibrate/calibration.hpp"

namespace shardfit::calibrate {

Machine this_machine() {
  Machine machine;
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    // "model name" on x86; Arm prints an implementer and a part instead.
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trim(line.substr(0, colon));
    if (key == "model name") {
      machine.cpu = trim(line.substr(colon + 1));
      break;
    }
    if (key == "CPU implementer" || key == "CPU part")
      machine.cpu += (machine.cpu.empty() ? "" : " ") + trim(line.substr(colon + 1));
    if (key == "CPU part") break;
  }
  if (machine.cpu.empty()) machine.cpu = "unknown CPU";
  machine.cores = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  CPU_ZERO(&set);
  machine.usable = sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : machine.cores;
  return machine;
}

}  // namespace shardfit::calibrate
